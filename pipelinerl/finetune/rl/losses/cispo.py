"""CISPO: REINFORCE with an importance weight clipped on both sides (MiniMax-M1, 2025, equation 4).

Unlike PPO, a clipped token keeps its gradient; only the size of its weight is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.losses.base import LossInputs, PolicyLoss

if TYPE_CHECKING:
    import torch


class Cispo(PolicyLoss):
    """-sum w * stopgrad(clip(r, 1 - epsilon_low, 1 + epsilon_high)) * F * logp_new."""

    def __call__(self, inputs: LossInputs, rl: RLConfig) -> torch.Tensor:
        ratio = inputs.ratio_N.detach().clamp(1 - rl.epsilon_low, 1 + rl.epsilon_high)
        return -(inputs.weight_N * ratio * inputs.factor_N(rl) * inputs.logprobs_N).sum()


cispo = Cispo()
