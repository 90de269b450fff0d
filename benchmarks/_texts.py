"""For benchmarks of the trainer: random texts as preprocess hands them on, and what trains on them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from pipelinerl.config import Config
from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.build import learner_of
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.finetune.step import Learner
from pipelinerl.rollouts import MASKED_TOKEN_ID

RL = RLConfig(epsilon_high=4.0)
LEARNING_RATE = 1e-5
CONSTANT = {"lr_scheduler_type": "constant", "num_warmup_steps": 0, "learning_rate": LEARNING_RATE}


def learner_for(
    model: PreTrainedModel, ranks: Ranks | None = None, bfloat16: bool = False, **keys: Any
) -> Learner:
    """As a run with a constant learning rate and these `keys` of the configuration would have it."""
    finetune = {"rl": RL, "load_as_bf16": bfloat16, **CONSTANT}
    return learner_of(model, Config.model_validate({"finetune": finetune, **keys}), ranks or Ranks())


def random_texts(lengths: Sequence[int], vocab: int, prompt: int) -> list[Sample]:
    """One text per length; all but `prompt` tokens (at most half) is trained on, advantages alternate."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, vocab, length).astype(np.int32) for length in lengths]
    total = float(sum(lengths))
    return [_text("g", i, one, min(prompt, len(one) // 2), vocab, total) for i, one in enumerate(ids)]


def random_groups(groups: int, texts: int, prompt: int, sampled: int, vocab: int) -> list[Sample]:
    """`groups` of `texts` completions: `sampled` tokens that are trained on, behind a prompt they share."""
    rng = np.random.default_rng(0)
    found = []
    for group in range(groups):
        start = rng.integers(0, vocab, prompt).astype(np.int32)
        for index in range(texts):
            ids = np.concatenate([start, rng.integers(0, vocab, sampled).astype(np.int32)])
            found.append(_text(f"g{group}", index, ids, prompt, vocab, float(texts * len(ids))))
    return found


def _text(group: str, index: int, ids: np.ndarray, prompt: int, vocab: int, group_tokens: float) -> Sample:
    labels = ids.copy()
    labels[:prompt] = MASKED_TOKEN_ID
    sampled = len(ids) - prompt
    return Sample(
        group_id=group,
        rollout_index=index,
        step_index=0,
        input_ids=ids,
        labels=labels,
        old_logprobs=np.full(sampled, -np.log(vocab), np.float32),
        ref_logprobs=np.full(sampled, -np.log(vocab), np.float32),
        weight_versions=[(0, 0, sampled)],
        reward=float(index % 2),
        advantage=1.0 if index % 2 else -1.0,
        group_tokens=group_tokens,
    )
