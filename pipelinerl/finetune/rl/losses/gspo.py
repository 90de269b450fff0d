"""Group sequence policy optimisation (Zheng et al. 2025): one ratio per text."""

import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.losses.base import LossInputs


def _sum_S(inputs: LossInputs, values_N: torch.Tensor) -> torch.Tensor:
    return values_N.new_zeros(inputs.n_texts).index_add(0, inputs.text_N, values_N)


def _mean_S(inputs: LossInputs, values_N: torch.Tensor) -> torch.Tensor:
    return _sum_S(inputs, values_N) / _sum_S(inputs, torch.ones_like(values_N)).clamp(min=1)


def text_ratio_S(inputs: LossInputs) -> torch.Tensor:
    """`[S]` importance ratio of each text, exp(mean_t log r), with gradient."""
    return _mean_S(inputs, inputs.log_ratio_N).exp()


def gspo(inputs: LossInputs, config: RLConfig) -> torch.Tensor:
    """-sum_i (sum_t w) * min(s * A, clip(s) * A) with s = exp(mean_t log r) and A = mean_t A."""
    ratio_S = text_ratio_S(inputs)
    advantage_S = _mean_S(inputs, inputs.advantages_N)
    clipped_S = ratio_S.clamp(1 - config.epsilon_low, 1 + config.epsilon_high)
    surrogate_S = torch.minimum(ratio_S * advantage_S, clipped_S * advantage_S)
    return -(_sum_S(inputs, inputs.weight_N) * surrogate_S).sum()
