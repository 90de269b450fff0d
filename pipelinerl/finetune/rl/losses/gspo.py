"""Group sequence policy optimisation (Zheng et al. 2025): one ratio per text."""

import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.losses.base import LossInputs


def _sum_S(inputs: LossInputs, values_N: torch.Tensor) -> torch.Tensor:
    return values_N.new_zeros(inputs.n_texts).index_add(0, inputs.text_N, values_N)


def _mean_S(inputs: LossInputs, values_N: torch.Tensor) -> torch.Tensor:
    """`[S]` means over each text's tokens that have a weight; 0 for a text without one."""
    # The mean gives every token in it a gradient, and those beyond the lag bound must not have any.
    counted_N = inputs.weight_N > 0
    total_S = _sum_S(inputs, torch.where(counted_N, values_N, 0.0))
    return total_S / _sum_S(inputs, counted_N.to(values_N.dtype)).clamp(min=1)


def text_ratio_S(inputs: LossInputs) -> torch.Tensor:
    """`[S]` importance ratio of each text, exp(mean_t log r) over tokens with w > 0, with gradient."""
    return _mean_S(inputs, inputs.log_ratio_N).exp()


def gspo(inputs: LossInputs, config: RLConfig) -> torch.Tensor:
    """-sum_i (sum_t w) * min(s * A, clip(s) * A) with s = exp(mean_t log r) and A = mean_t A, where w > 0."""
    ratio_S = text_ratio_S(inputs)
    advantage_S = _mean_S(inputs, inputs.advantages_N)
    clipped_S = ratio_S.clamp(1 - config.epsilon_low, 1 + config.epsilon_high)
    surrogate_S = torch.minimum(ratio_S * advantage_S, clipped_S * advantage_S)
    return -(_sum_S(inputs, inputs.weight_N) * surrogate_S).sum()
