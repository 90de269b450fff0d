"""The situational estimator: one reward per sample, compared within the group's situation."""

import numpy as np

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.advantages.base import (
    AdvantageEstimator,
    Advantages,
    leave_one_out,
    tokens_per_rollout,
)
from pipelinerl.finetune.rl.table import NONE, SampleTable, codes_of


class Situation(AdvantageEstimator):
    """Leave-one-out within (situation, end-aligned position), or within the step where there is none.

    Raises ValueError when a bucket holds two roles.
    """

    def __call__(self, table: SampleTable, rl: RLConfig) -> Advantages:
        labelled = table.situation != NONE
        longest = _longest_segments(table)
        place = np.where(labelled, longest - table.segment_length + table.local_index, table.step)
        keys = [table.group, table.situation, place]
        reward = table.reward
        if rl.pad_step_rewards_for_advantage:
            padding = [*_front_padding(table, longest), *_tail_padding(table)]
            for rows, places, rewards in padding:
                keys = [
                    np.concatenate([keys[0], table.group[rows]]),
                    np.concatenate([keys[1], table.situation[rows]]),
                    np.concatenate([keys[2], places]),
                ]
                reward = np.concatenate([reward, rewards])
        bucket = codes_of(*keys)
        samples = bucket[: len(table)]
        _check_one_role(table, samples)
        advantage, baseline, rows = leave_one_out(bucket, reward, len(table), rl.divide_advantage_by_std)
        return Advantages(
            advantage=advantage,
            baseline=baseline,
            group_tokens=tokens_per_rollout(table),
            bucket=samples,
            bucket_rows=rows,
            bucket_samples=np.bincount(samples, minlength=len(rows)),
            padding_rows=len(reward) - len(table),
        )


situation = Situation()


def _longest_segments(table: SampleTable) -> np.ndarray:
    """Largest segment length of the sample's situation in its group, int64 `[N]`."""
    if len(table) == 0:
        return np.zeros(0, np.int64)
    codes = codes_of(table.group, table.situation)
    longest = np.zeros(int(codes.max()) + 1, np.int64)
    np.maximum.at(longest, codes, table.segment_length)
    return longest[codes]


def _check_one_role(table: SampleTable, bucket: np.ndarray) -> None:
    if not table.role_names:
        return
    first = np.full(int(bucket.max(initial=-1)) + 1, NONE, np.int64)
    first[bucket[::-1]] = table.role[::-1]
    for row in np.flatnonzero(table.role != first[bucket])[:1].tolist():
        roles = sorted({_role_name(table, table.role[row]), _role_name(table, first[bucket[row]])})
        raise ValueError(
            f"sample {table.name(row)}: roles {' and '.join(roles)} share one situation; give each its own"
        )


def _role_name(table: SampleTable, role: int) -> str:
    return "none" if role == NONE else table.role_names[role]


_PaddingRows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(sample that is padded, place, reward) per padding row."""


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Concatenated `range(start, start + count)`."""
    offsets = np.cumsum(counts) - counts
    return np.arange(int(counts.sum())) - np.repeat(offsets, counts) + np.repeat(starts, counts)


def _front_padding(table: SampleTable, longest: np.ndarray) -> list[_PaddingRows]:
    """Rows before segments shorter than the longest of their situation."""
    rows = np.flatnonzero(table.situation != NONE)
    if len(rows) == 0:
        return []
    segment = codes_of(table.group[rows], table.rollout[rows], table.situation[rows])
    order = np.lexsort((table.local_index[rows], table.step[rows], segment))
    rows, segment = rows[order], segment[order]
    first = np.flatnonzero(np.concatenate([[True], np.diff(segment) != 0]))
    value = table.reward[rows[first]]
    given = np.flatnonzero(~np.isnan(table.padding_value[rows]))[::-1]
    value[segment[given]] = table.padding_value[rows[given]]  # reversed: the earliest is written last
    heads = rows[first]
    counts = longest[heads] - table.segment_length[heads]
    return [(np.repeat(heads, counts), _ranges(np.zeros_like(counts), counts), np.repeat(value, counts))]


def _tail_padding(table: SampleTable) -> list[_PaddingRows]:
    """Rows after a rollout's last sample without a situation, up to the group's last step."""
    rows = np.flatnonzero(table.situation == NONE)
    if len(rows) == 0:
        return []
    last_step = np.zeros(int(table.group.max()) + 1, np.int64)
    np.maximum.at(last_step, table.group, table.step)
    rollout = codes_of(table.group[rows], table.rollout[rows])
    order = np.lexsort((table.step[rows], rollout))
    rows, rollout = rows[order], rollout[order]
    tails = rows[np.concatenate([np.diff(rollout) != 0, [True]])]
    value = np.where(np.isnan(table.padding_reward[tails]), table.reward[tails], table.padding_reward[tails])
    counts = last_step[table.group[tails]] - table.step[tails]
    return [(np.repeat(tails, counts), _ranges(table.step[tails] + 1, counts), np.repeat(value, counts))]
