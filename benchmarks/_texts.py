"""Random texts as preprocess hands them on, for benchmarks of the trainer."""

from collections.abc import Sequence

import numpy as np

from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.rollouts import MASKED_TOKEN_ID


def random_texts(lengths: Sequence[int], vocab: int, prompt: int) -> list[Sample]:
    """One text per length; all but `prompt` tokens (at most half) is trained on, advantages alternate."""
    rng = np.random.default_rng(0)
    texts = []
    for index, length in enumerate(lengths):
        ids = rng.integers(0, vocab, length).astype(np.int32)
        labels = ids.copy()
        labels[: min(prompt, length // 2)] = MASKED_TOKEN_ID
        sampled = length - min(prompt, length // 2)
        texts.append(
            Sample(
                group_id="g",
                rollout_index=index,
                step_index=0,
                input_ids=ids,
                labels=labels,
                old_logprobs=np.full(sampled, -np.log(vocab), np.float32),
                ref_logprobs=np.full(sampled, -np.log(vocab), np.float32),
                weight_versions=[(0, 0, sampled)],
                reward=float(index % 2),
                advantage=1.0 if index % 2 else -1.0,
                group_tokens=float(sum(lengths)),
            )
        )
    return texts
