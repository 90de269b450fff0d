"""Per-text advantages: leave-one-out baselines over rollouts, or over situations and steps.

Pure functions of a `TextTable` in float64 numpy. A further estimator is another function with this
signature; expansion to tokens, filter and loss weights do not change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelinerl.finetune.rl.text_table import NONE, TextTable, codes_of

STD_EPSILON = 1e-4


@dataclass(frozen=True, slots=True)
class Advantages:
    """float64 `[N]` advantage, baseline and group_tokens; int64 bucket `[N]` of each text.

    bucket_rows and bucket_texts int64 `[buckets]` count the rows (padding included) and the texts.
    """

    advantage: np.ndarray
    baseline: np.ndarray
    group_tokens: np.ndarray
    bucket: np.ndarray
    bucket_rows: np.ndarray
    bucket_texts: np.ndarray
    padding_rows: int


def compute_advantages(
    table: TextTable,
    step_reward_advantages: bool = False,
    pad_step_rewards: bool = False,
    divide_by_std: bool = False,
) -> Advantages:
    """Advantages of unmasked texts of whole groups.

    Raises ValueError when a masked text is passed, when padding is asked for on the default path, when
    rewards differ within a rollout on the default path, or when a bucket holds two roles.
    """
    if table.masked.any():
        raise ValueError("masked texts take no part in advantages; set them aside first")
    if step_reward_advantages:
        return _by_bucket(table, pad_step_rewards, divide_by_std)
    if pad_step_rewards:
        raise ValueError("pad_step_rewards_for_advantage=true needs step_reward_advantages=true")
    return _by_rollout(table, divide_by_std)


@dataclass(frozen=True, slots=True)
class _Statistics:
    count: np.ndarray
    total: np.ndarray
    std: np.ndarray


def _statistics(bucket: np.ndarray, reward: np.ndarray, n_buckets: int, want_std: bool) -> _Statistics:
    """Count, sum and sample standard deviation (two passes, ddof 1; 0 for a single row) per bucket."""
    count = np.bincount(bucket, minlength=n_buckets)
    total = np.bincount(bucket, weights=reward, minlength=n_buckets)
    if not want_std:
        return _Statistics(count, total, np.zeros(n_buckets))
    deviation = reward - (total / np.maximum(count, 1))[bucket]
    squares = np.bincount(bucket, weights=deviation * deviation, minlength=n_buckets)
    return _Statistics(count, total, np.sqrt(squares / np.maximum(count - 1, 1)) * (count > 1))


def _leave_one_out(
    reward: np.ndarray, bucket: np.ndarray, statistics: _Statistics, divide_by_std: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(advantage, baseline): baseline (S - r)/(n - 1), or r itself in a bucket of one row."""
    count = statistics.count[bucket]
    others = (statistics.total[bucket] - reward) / np.maximum(count - 1, 1)
    baseline = np.where(count > 1, others, reward)
    advantage = reward - baseline
    if divide_by_std:
        advantage = advantage / (statistics.std[bucket] + STD_EPSILON)
    return advantage, baseline


def _mean_per_group(group: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Mean of one value per rollout over each group, indexed by group code."""
    return np.bincount(group, weights=value) / np.maximum(np.bincount(group), 1)


def _by_rollout(table: TextTable, divide_by_std: bool) -> Advantages:
    """One reward per rollout; its first remaining text stands for it."""
    rollout = table.rollout_codes()
    order = np.lexsort((table.step, rollout))
    first = order[np.concatenate([[True], np.diff(rollout[order]) != 0])] if len(order) else order
    _check_one_reward(table, rollout, first)
    group = table.group[first]
    n_groups = int(table.group.max(initial=-1)) + 1
    statistics = _statistics(group, table.reward[first], n_groups, divide_by_std)
    advantage, baseline = _leave_one_out(table.reward[first], group, statistics, divide_by_std)
    group_tokens = _mean_per_group(group, table.n_tokens[first])
    return Advantages(
        advantage=advantage[rollout],
        baseline=baseline[rollout],
        group_tokens=group_tokens[table.group],
        bucket=table.group,
        bucket_rows=statistics.count,
        bucket_texts=statistics.count,
        padding_rows=0,
    )


def _check_one_reward(table: TextTable, rollout: np.ndarray, first: np.ndarray) -> None:
    expected = table.reward[first][rollout]
    for row in np.flatnonzero(table.reward != expected)[:1].tolist():
        raise ValueError(
            f"text {table.name(row)}: reward {table.reward[row]:g} differs from {expected[row]:g} of the "
            "rollout's first text; rewards per step need finetune.rl.step_reward_advantages=true"
        )


def _by_bucket(table: TextTable, pad: bool, divide_by_std: bool) -> Advantages:
    """Texts of one group compare within (situation, end-aligned position), or within their step."""
    labelled = table.situation != NONE
    longest = _longest_segments(table)
    place = np.where(labelled, longest - table.segment_length + table.local_index, table.step)
    keys = [table.group, table.situation, place]
    reward = table.reward
    if pad:
        padding = [*_front_padding(table, longest), *_tail_padding(table)]
        for rows, places, rewards in padding:
            keys = [
                np.concatenate([keys[0], table.group[rows]]),
                np.concatenate([keys[1], table.situation[rows]]),
                np.concatenate([keys[2], places]),
            ]
            reward = np.concatenate([reward, rewards])
    bucket = codes_of(*keys)
    n_buckets, n_texts = int(bucket.max(initial=-1)) + 1, len(table)
    texts = bucket[:n_texts]
    _check_one_role(table, texts)
    statistics = _statistics(bucket, reward, n_buckets, divide_by_std)
    advantage, baseline = _leave_one_out(table.reward, texts, statistics, divide_by_std)
    return Advantages(
        advantage=advantage,
        baseline=baseline,
        group_tokens=_tokens_per_rollout(table),
        bucket=texts,
        bucket_rows=statistics.count,
        bucket_texts=np.bincount(texts, minlength=n_buckets),
        padding_rows=len(reward) - n_texts,
    )


def _longest_segments(table: TextTable) -> np.ndarray:
    """Largest segment length of the text's situation in its group, int64 `[N]`."""
    if len(table) == 0:
        return np.zeros(0, np.int64)
    codes = codes_of(table.group, table.situation)
    longest = np.zeros(int(codes.max()) + 1, np.int64)
    np.maximum.at(longest, codes, table.segment_length)
    return longest[codes]


def _tokens_per_rollout(table: TextTable) -> np.ndarray:
    """Mean over the group's rollouts of the sum of the rollout's tokens, float64 `[N]`."""
    if len(table) == 0:
        return np.zeros(0)
    rollout = table.rollout_codes()
    sums = np.bincount(rollout, weights=table.n_tokens)
    group = np.zeros(len(sums), np.int64)
    group[rollout] = table.group
    return _mean_per_group(group, sums)[table.group]


def _check_one_role(table: TextTable, bucket: np.ndarray) -> None:
    if not table.role_names:
        return
    first = np.full(int(bucket.max(initial=-1)) + 1, NONE, np.int64)
    first[bucket[::-1]] = table.role[::-1]
    for row in np.flatnonzero(table.role != first[bucket])[:1].tolist():
        roles = sorted({_role_name(table, table.role[row]), _role_name(table, first[bucket[row]])})
        raise ValueError(
            f"text {table.name(row)}: roles {' and '.join(roles)} share one situation; give each its own"
        )


def _role_name(table: TextTable, role: int) -> str:
    return "none" if role == NONE else table.role_names[role]


_PaddingRows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(text that is padded, place, reward) per padding row."""


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Concatenated `range(start, start + count)`."""
    offsets = np.cumsum(counts) - counts
    return np.arange(int(counts.sum())) - np.repeat(offsets, counts) + np.repeat(starts, counts)


def _front_padding(table: TextTable, longest: np.ndarray) -> list[_PaddingRows]:
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


def _tail_padding(table: TextTable) -> list[_PaddingRows]:
    """Rows after a rollout's last text without a situation, up to the group's last step."""
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
