"""Policy losses by their configuration name, and the objective that they are part of."""

from __future__ import annotations

import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.losses.base import Coefficients, LossInputs, PolicyLoss, regularisation
from pipelinerl.finetune.rl.losses.cispo import cispo
from pipelinerl.finetune.rl.losses.gspo import gspo
from pipelinerl.finetune.rl.losses.ppo import ppo
from pipelinerl.finetune.rl.losses.reinforce import reinforce
from pipelinerl.finetune.rl.losses.sft import sft
from pipelinerl.finetune.rl.losses.value import value_loss

POLICY_LOSS_FUNCTIONS: dict[str, PolicyLoss] = {
    "reinforce": reinforce,
    "ppo": ppo,
    "gspo": gspo,
    "cispo": cispo,
    "sft": sft,
}

__all__ = ["POLICY_LOSS_FUNCTIONS", "Coefficients", "LossInputs", "PolicyLoss", "total_loss"]


def total_loss(inputs: LossInputs, config: RLConfig, coefficients: Coefficients) -> torch.Tensor:
    """Policy term plus KL minus entropy bonus plus value loss: the scalar to call `backward` on."""
    policy = POLICY_LOSS_FUNCTIONS[config.policy_loss](inputs, config)
    return policy + regularisation(inputs, config, coefficients) + value_loss(inputs, config)
