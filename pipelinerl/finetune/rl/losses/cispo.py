"""CISPO: REINFORCE with an importance weight clipped on both sides (MiniMax-M1, 2025, equation 4).

Unlike PPO, a clipped token keeps its gradient; only the size of its weight is bounded.
"""

import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.losses.base import LossInputs


def cispo(inputs: LossInputs, config: RLConfig) -> torch.Tensor:
    """-sum w * stopgrad(clip(r, 1 - epsilon_low, 1 + epsilon_high)) * F * logp_new."""
    ratio = inputs.ratio_N.detach().clamp(1 - config.epsilon_low, 1 + config.epsilon_high)
    return -(inputs.weight_N * ratio * inputs.factor_N(config) * inputs.logprobs_N).sum()
