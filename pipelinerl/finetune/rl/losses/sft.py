"""Supervised negative log-likelihood behind the same interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.losses.base import LossInputs, PolicyLoss

if TYPE_CHECKING:
    import torch


class Sft(PolicyLoss):
    """-sum w * logp_new."""

    ignores = ("epsilon_low", "epsilon_high", "use_advantages", "relu_log_p_weights")
    compares = False
    reads_ratio = False

    def __call__(self, inputs: LossInputs, rl: RLConfig) -> torch.Tensor:
        return -(inputs.weight_N * inputs.logprobs_N).sum()

    def clipped_N(self, inputs: LossInputs, rl: RLConfig) -> torch.Tensor:
        return inputs.weight_N.bool().zero_()


sft = Sft()
