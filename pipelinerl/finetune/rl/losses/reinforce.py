"""REINFORCE with a truncated importance weight."""

import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.losses.base import LossInputs


def reinforce(inputs: LossInputs, config: RLConfig) -> torch.Tensor:
    """-sum w * logp_new * F * stopgrad(clip(r, 0, 1 + epsilon_high))."""
    ratio = inputs.ratio_N.detach().clamp(0, 1 + config.epsilon_high)
    return -(inputs.weight_N * inputs.logprobs_N * inputs.factor_N(config) * ratio).sum()
