"""Group sequence policy optimisation (Zheng et al. 2025): one ratio per text."""

from __future__ import annotations

import torch

from pipelinerl.finetune.rl.config import RLConfig
from pipelinerl.finetune.rl.losses.base import LossInputs


def gspo(inputs: LossInputs, config: RLConfig) -> torch.Tensor:
    """-sum_i (sum_t w) * min(s * A, clip(s) * A) with s = exp(mean_t log r) and A = mean_t A."""

    def per_text(values_N: torch.Tensor) -> torch.Tensor:
        return values_N.new_zeros(inputs.n_texts).index_add(0, inputs.text_N, values_N)

    count_S = per_text(torch.ones_like(inputs.weight_N)).clamp(min=1)
    ratio_S = (per_text(inputs.log_ratio_N) / count_S).exp()
    advantage_S = per_text(inputs.advantages_N) / count_S
    clipped_S = ratio_S.clamp(1 - config.epsilon_low, 1 + config.epsilon_high)
    surrogate_S = torch.minimum(ratio_S * advantage_S, clipped_S * advantage_S)
    return -(per_text(inputs.weight_N) * surrogate_S).sum()
