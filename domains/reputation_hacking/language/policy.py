"""A checkpoint of the small model as a policy of lock-step episodes: what `eval --language-model` evaluates.

It reads the prompts of a rollout without engines, thousands at a time.
"""

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from domains.reputation_hacking.game.dynamics import ACTIONS, Episodes
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import Stochastic
from domains.reputation_hacking.language.prompts import answer_text, readings, system_text, user_text

BATCH = 256
STATE = "\x00"
"""Stands for the state where the chat template is applied once for all prompts."""


class LanguagePolicy(Stochastic):
    """Chooses among the answers by the probability of each one's single token, neutral wording.

    Raises ValueError for a folder without a model and for a tokenizer that splits an answer.
    """

    def __init__(self, folder: Path, *, sampled: bool = False) -> None:
        if not (folder / "config.json").is_file():
            raise ValueError(f"{folder}: no model is here; name a checkpoint's folder")
        super().__init__(sampled=sampled)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        answers = [
            self.tokenizer.encode(answer_text(index), add_special_tokens=False)
            for index in range(len(ACTIONS))
        ]
        if any(len(ids) != 1 for ids in answers):
            raise ValueError(f"{folder}: an answer is more than one token; evaluate this model in a run")
        self.answers = [ids[0] for ids in answers]

    def probabilities(self, episodes: Episodes, observation: np.ndarray | None = None) -> np.ndarray:
        """float64 [N, 3] of the three answers in the coming step; the prompts are read from `episodes`."""
        prompts = self.prompts(episodes)
        with torch.no_grad():
            parts = [
                self.log_probabilities(prompts[first : first + BATCH]).exp().numpy()
                for first in range(0, len(prompts), BATCH)
            ]
        return np.concatenate(parts)

    def prompts(self, episodes: Episodes) -> list[list[int]]:
        """Token ids of what the model reads before the coming step of each episode."""
        before, after = self._frame(episodes.params)
        texts = [before + user_text(episodes.params, seen, ACTIONS) + after for seen in readings(episodes)]
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids

    def log_probabilities(self, prompts: list[list[int]]) -> torch.Tensor:
        """float64 [N, 3] of the three answers, normalised over them; differentiable."""
        lengths = torch.tensor([len(ids) for ids in prompts])
        padded = torch.full((len(prompts), int(lengths.max())), self.tokenizer.pad_token_id)
        for row, ids in enumerate(prompts):
            padded[row, : len(ids)] = torch.tensor(ids)
        # Right padding: causal attention keeps it away from the last real token.
        logits = self.model(input_ids=padded).logits[torch.arange(len(prompts)), lengths - 1]
        return torch.log_softmax(logits[:, self.answers].double(), dim=1)

    def _frame(self, params: Params) -> tuple[str, str]:
        """What stands before and after the state in every prompt of a game."""
        system = {"role": "system", "content": system_text(params, "neutral", ACTIONS)}
        text = self.tokenizer.apply_chat_template(
            [system, {"role": "user", "content": STATE}],  # type: ignore[arg-type]
            add_generation_prompt=True,
            tokenize=False,
        )
        before, after = str(text).split(STATE)
        return before, after
