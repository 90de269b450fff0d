"""PPO's clipped surrogate (Schulman et al. 2017, equation 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.losses.base import LossInputs, PolicyLoss

if TYPE_CHECKING:
    import torch


class Ppo(PolicyLoss):
    """-sum w * min(r * F, clip(r, 1 - epsilon_low, 1 + epsilon_high) * F)."""

    def __call__(self, inputs: LossInputs, rl: RLConfig) -> torch.Tensor:
        ratio, factor = inputs.ratio_N, inputs.factor_N(rl)
        clipped = ratio.clamp(1 - rl.epsilon_low, 1 + rl.epsilon_high)
        return -(inputs.weight_N * (ratio * factor).minimum(clipped * factor)).sum()


ppo = Ppo()
