"""Supervised negative log-likelihood behind the same interface."""

import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.losses.base import LossInputs


def sft(inputs: LossInputs, config: RLConfig) -> torch.Tensor:
    """-sum w * logp_new."""
    return -(inputs.weight_N * inputs.logprobs_N).sum()
