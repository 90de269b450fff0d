"""The value head's squared error, added to the policy term of an actor-critic run."""

from __future__ import annotations

import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.losses.base import LossInputs


def value_loss(inputs: LossInputs, config: RLConfig) -> torch.Tensor:
    """value_loss_coef * sum w * (V - R)^2 / 2; exactly 0 without a graph when there is no value head."""
    if inputs.values_N is None:
        return inputs.weight_N.new_zeros(())
    error = inputs.values_N - inputs.rewards_N
    return config.value_loss_coef * (inputs.weight_N * 0.5 * error.square()).sum()
