"""REINFORCE with a truncated importance weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.losses.base import LossInputs, PolicyLoss

if TYPE_CHECKING:
    import torch


class Reinforce(PolicyLoss):
    """-sum w * logp_new * F * stopgrad(clip(r, 0, 1 + epsilon_high))."""

    ignores = ("epsilon_low",)

    def __call__(self, inputs: LossInputs, rl: RLConfig) -> torch.Tensor:
        ratio = self.reported_ratio_N(inputs, rl).detach()
        return -(inputs.weight_N * inputs.logprobs_N * inputs.factor_N(rl) * ratio).sum()

    def reported_ratio_N(self, inputs: LossInputs, rl: RLConfig) -> torch.Tensor:
        return inputs.ratio_N.clamp(0, 1 + rl.epsilon_high)

    def clipped_N(self, inputs: LossInputs, rl: RLConfig) -> torch.Tensor:
        return inputs.ratio_N > 1 + rl.epsilon_high


reinforce = Reinforce()
