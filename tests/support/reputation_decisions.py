"""Decisions of lock-step episodes as the table that the pipeline's estimators of advantages read.

For experiments that update a policy without engines: the benchmark `reputation_updates` and the tests.
"""

import numpy as np

from domains.reputation_hacking.language.prompts import SITUATIONS
from pipelinerl.finetune.rl.table import NONE, SampleTable


def table_of(reward: np.ndarray, attempts: int, situation: np.ndarray | None = None) -> SampleTable:
    """One sample a decision: `reward` [T, N] of N / attempts groups, neighbours being siblings.

    `situation` [T, N] labels the samples; without it equal steps of siblings are compared.
    """
    steps, count = reward.shape
    episode = np.tile(np.arange(count), (steps, 1))
    flat = steps * count
    nothing = np.full(flat, np.nan)
    return SampleTable(
        group=(episode // attempts).ravel(),
        rollout=(episode % attempts).ravel(),
        step=np.repeat(np.arange(steps), count),
        reward=reward.ravel(),
        n_tokens=np.ones(flat, dtype=np.int64),
        situation=np.full(flat, NONE) if situation is None else situation.ravel(),
        local_index=np.zeros(flat, dtype=np.int64),
        segment_length=np.ones(flat, dtype=np.int64),
        padding_value=nothing,
        padding_reward=nothing,
        role=np.full(flat, NONE),
        loss_weight=np.ones(flat),
        group_names=tuple(map(str, range(count // attempts))),
        situation_names=tuple(map(str, range(SITUATIONS))),
        role_names=(),
    )
