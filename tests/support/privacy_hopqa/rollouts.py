"""Whole rollouts through the rollout policy: an engine that answers as told, services of the caller's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from omegaconf import OmegaConf

from domains.privacy_hopqa import rollouts
from domains.privacy_hopqa.agent import llm as engine
from domains.privacy_hopqa.data.chains import Chain
from pipelinerl.llm import LLMCall, LLMOutput, Prompt
from pipelinerl.rollouts import RolloutResult, TrainingText
from tests.support.privacy_hopqa import say


class CharacterLLM:
    """A tokenizer whose ids are characters."""

    def prompt_ids(self, prompt: Prompt) -> np.ndarray:
        return np.array([ord(c) for c in prompt.messages[0]["content"]], np.int32)


def oracle(chain: Chain, text: str) -> str:
    """An engine that searches for the question and reads the right answer where it stands."""
    stage, _, rest = text.partition("\n")
    question = rest.split("question: ")[1].split("\n")[0]
    hop = next(hop for hop in chain.hops if hop.filled(chain.gold_answers) == question)
    if stage == "plan":
        return (say.local if hop.source == "local" else say.plan)(question)
    if stage == "read":
        found = [answer for answer in hop.accepted if answer in rest.replace(question, "")]
        return say.yes(found[0]) if found else say.NO
    return say.done(hop.answer)


def answer_with(monkeypatch: pytest.MonkeyPatch, reply: Callable[[str], str]) -> list[tuple[int, int]]:
    """Let `reply` answer every prompt; the prompt tokens and output budget of each call that reaches it."""
    sent: list[tuple[int, int]] = []

    async def generate(llm: Any, prompt: Prompt, session: Any, max_tokens_override: int) -> LLMCall:
        text = prompt.messages[0]["content"]
        assert [chr(i) for i in prompt.token_ids] == list(text)
        sent.append((len(prompt.token_ids), max_tokens_override))
        return LLMCall(
            prompt=prompt,
            output=LLMOutput(content=reply(text)),
            prompt_length_tokens=len(prompt.token_ids),
            output_length_tokens=7,
        )

    def training_text(llm: Any, call: LLMCall) -> TrainingText:
        return TrainingText(text=call.output.content, n_predicted=1, metadata={"exact_versions": False})

    monkeypatch.setattr(engine, "llm_async_generate", generate)
    monkeypatch.setattr(rollouts, "make_training_text", training_text)
    return sent


async def attempt(chain: Chain, output: Path, **settings: Any) -> RolloutResult:
    """One rollout with compact prompts and these settings."""
    block = {"prompt_set": "compact", "max_candidate_cards": 6} | settings
    cfg = OmegaConf.create({"output_dir": str(output), "privacy_hopqa": block})
    problem = {"id": 0, "domain": "privacy_hopqa", "dataset": "toy", "chain": chain}
    async with aiohttp.ClientSession() as session:
        llm: Any = CharacterLLM()
        return await rollouts.generate_privacy_hopqa_rollout(cfg, llm, problem, session)
