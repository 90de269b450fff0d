"""PPO's clipped surrogate (Schulman et al. 2017, equation 7)."""

import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.losses.base import LossInputs


def ppo(inputs: LossInputs, config: RLConfig) -> torch.Tensor:
    """-sum w * min(r * F, clip(r, 1 - epsilon_low, 1 + epsilon_high) * F)."""
    ratio, factor = inputs.ratio_N, inputs.factor_N(config)
    clipped = ratio.clamp(1 - config.epsilon_low, 1 + config.epsilon_high)
    return -(inputs.weight_N * torch.minimum(ratio * factor, clipped * factor)).sum()
