"""Group sequence policy optimisation (Zheng et al. 2025): one ratio per sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.losses.base import (
    LossInputs,
    LossMetric,
    PolicyLoss,
    Reducer,
    beyond,
    mean_S,
    sum_S,
)

if TYPE_CHECKING:
    import torch


class Gspo(PolicyLoss):
    """-sum_i (sum_t w) * min(s * A, clip(s) * A) with s = exp(mean_t log r) and A = mean_t A, where w > 0."""

    ignores = (
        "kl_coef",
        "final_kl_coef",
        "entropy_bonus",
        "final_entropy_bonus",
        "relu_log_p_weights",
        "use_advantages",
    )

    metrics = (
        LossMetric(
            "sample_ratio",
            Reducer.TEXT_MEAN,
            "importance ratio of a sample, as the term multiplies with it",
            lambda inputs, rl: sample_ratio_S(inputs)[inputs.text_N],
        ),
    )

    def __call__(self, inputs: LossInputs, rl: RLConfig) -> torch.Tensor:
        ratio_S = sample_ratio_S(inputs)
        advantage_S = mean_S(inputs, inputs.advantages_N)
        clipped_S = ratio_S.clamp(1 - rl.epsilon_low, 1 + rl.epsilon_high)
        surrogate_S = (ratio_S * advantage_S).minimum(clipped_S * advantage_S)
        return -(sum_S(inputs, inputs.weight_N) * surrogate_S).sum()

    def clipped_N(self, inputs: LossInputs, rl: RLConfig) -> torch.Tensor:
        """All tokens of the samples whose ratio is beyond the clip."""
        return beyond(sample_ratio_S(inputs), rl)[inputs.text_N]


gspo = Gspo()


def sample_ratio_S(inputs: LossInputs) -> torch.Tensor:
    """`[S]` importance ratio of each sample, exp(mean_t log r) over tokens with w > 0, with gradient."""
    return mean_S(inputs, inputs.log_ratio_N).exp()
