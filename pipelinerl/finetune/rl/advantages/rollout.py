"""The default estimator: one reward per rollout, compared with the group's other rollouts."""

import numpy as np

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.advantages.base import (
    AdvantageEstimator,
    Advantages,
    equal_but_for_rounding,
    leave_one_out,
    mean_per_group,
)
from pipelinerl.finetune.rl.table import SampleTable


class Rollout(AdvantageEstimator):
    """Leave-one-out over rollouts; the first remaining sample of a rollout stands for it.

    Raises ValueError when rewards differ within a rollout.
    """

    ignores = ("pad_step_rewards_for_advantage", "step_reward_advantages")

    def __call__(self, table: SampleTable, rl: RLConfig) -> Advantages:
        rollouts = table.rollout_codes()
        order = np.lexsort((table.step, rollouts))
        first = order[np.concatenate([[True], np.diff(rollouts[order]) != 0])] if len(order) else order
        _check_one_reward(table, rollouts, first)
        group = table.group[first]
        advantage, baseline, count = leave_one_out(
            group, table.reward[first], len(first), rl.divide_advantage_by_std
        )
        return Advantages(
            advantage=advantage[rollouts],
            baseline=baseline[rollouts],
            group_tokens=mean_per_group(group, table.n_tokens[first])[table.group],
            bucket=table.group,
            bucket_rows=count,
            bucket_samples=count,
        )


rollout = Rollout()


def _check_one_reward(table: SampleTable, rollouts: np.ndarray, first: np.ndarray) -> None:
    expected = table.reward[first][rollouts]
    for row in np.flatnonzero(~equal_but_for_rounding(table.reward, expected))[:1].tolist():
        raise ValueError(
            f"sample {table.name(row)}: reward {table.reward[row]:.16g} differs from {expected[row]:.16g} of "
            "the rollout's first sample; rewards per step need finetune.rl.step_reward_advantages=true"
        )
