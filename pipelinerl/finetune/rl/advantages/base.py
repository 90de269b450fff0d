"""What an advantage estimator is and returns, and the leave-one-out arithmetic that estimators share."""

from dataclasses import dataclass

import numpy as np

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.table import SampleTable

STD_EPSILON = 1e-4
_ROUNDING = 4 * np.finfo(np.float64).eps
"""Of the larger reward: two sums of the same terms differ by it."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """float64 `[N]` advantage, baseline and group_tokens; int64 bucket `[N]` of each sample.

    A bucket is a set of samples that are compared with each other. bucket_rows and bucket_samples int64
    `[buckets]` count its rows (padding included) and its samples.
    """

    advantage: np.ndarray
    baseline: np.ndarray
    group_tokens: np.ndarray
    bucket: np.ndarray
    bucket_rows: np.ndarray
    bucket_samples: np.ndarray
    padding_rows: int = 0

    @classmethod
    def within_groups(cls, table: SampleTable, advantage: np.ndarray) -> "Advantages":
        """For an estimator that compares all samples of a group; `advantage` float64 `[N]`."""
        count = np.bincount(table.group)
        return cls(
            advantage=advantage,
            baseline=table.reward - advantage,
            group_tokens=tokens_per_rollout(table),
            bucket=table.group,
            bucket_rows=count,
            bucket_samples=count,
        )


class AdvantageEstimator:
    """An advantage estimator, and the settings that it does not read.

    One of this package is a file with an instance named like the file. One of another package is named by its
    dotted path: an instance of a subclass, or a plain function `(SampleTable, RLConfig) -> Advantages`.
    """

    ignores: tuple[str, ...] = ()
    """Keys of `finetune.rl` that it does not read; a run that sets one of them is refused."""

    def __call__(self, table: SampleTable, rl: RLConfig) -> Advantages:
        """Advantages of the unmasked samples of whole groups.

        Raises ValueError naming a sample that it cannot compare; its group is then dropped and counted.
        """
        raise NotImplementedError


def equal_but_for_rounding(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """bool `[N]`: whether two rewards, float64 `[N]`, may be sums of the same terms."""
    larger: np.ndarray = np.maximum(np.abs(one), np.abs(other))
    return np.abs(other - one) <= _ROUNDING * larger


def leave_one_out(
    bucket: np.ndarray, reward: np.ndarray, n_samples: int, divide_by_std: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(advantage, baseline) of the first `n_samples` rows, and the rows int64 `[buckets]` of each bucket.

    bucket int64 and reward float64 `[rows]`: samples, then padding. The baseline is (sum - r)/(n - 1), or r
    itself in a bucket of one row; the standard deviation that divides has ddof 1, and is 0 for a single row.
    Rewards are summed as distances from the bucket's lowest one: a sum of large rewards is rounded by more
    than they differ. A bucket whose rewards differ by rounding only has no advantages.
    """
    rows = np.bincount(bucket)
    lowest, highest = np.full(len(rows), np.inf), np.full(len(rows), -np.inf)
    np.minimum.at(lowest, bucket, reward)
    np.maximum.at(highest, bucket, reward)
    equal = equal_but_for_rounding(lowest, highest)
    above = np.where(equal[bucket], 0.0, reward - lowest[bucket])
    total = np.bincount(bucket, weights=above)
    mine, own = bucket[:n_samples], above[:n_samples]
    others = (total[mine] - own) / np.maximum(rows[mine] - 1, 1)
    baseline = np.where(equal[mine], reward[:n_samples], lowest[mine] + others)
    advantage = own - others
    if divide_by_std:
        deviation = above - (total / np.maximum(rows, 1))[bucket]
        squares = np.bincount(bucket, weights=deviation * deviation)
        std = np.sqrt(squares / np.maximum(rows - 1, 1)) * (rows > 1)
        advantage = advantage / (std[mine] + STD_EPSILON)
    return advantage, baseline, rows


def mean_per_group(group: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Mean of one value per rollout over each group, indexed by group code."""
    return np.bincount(group, weights=value) / np.maximum(np.bincount(group), 1)


def tokens_per_rollout(table: SampleTable) -> np.ndarray:
    """Mean over the group's rollouts of the sum of the rollout's tokens, float64 `[N]`."""
    if len(table) == 0:
        return np.zeros(0)
    rollout = table.rollout_codes()
    sums = np.bincount(rollout, weights=table.n_tokens)
    group = np.zeros(len(sums), np.int64)
    group[rollout] = table.group
    return mean_per_group(group, sums)[table.group]


def zero_advantage_groups(table: SampleTable, advantage: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    """bool `[N]`: samples of groups in which no advantage exceeds `epsilon` in absolute value."""
    if len(table) == 0:
        return np.zeros(0, bool)
    largest = np.zeros(int(table.group.max()) + 1)
    np.maximum.at(largest, table.group, np.abs(advantage))
    return (largest <= epsilon)[table.group]
