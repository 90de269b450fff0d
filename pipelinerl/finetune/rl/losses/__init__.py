"""Policy losses by their configuration name, and the objective that they are part of.

A loss is a file of this folder with a function of the same name, or a function of another package by its
dotted path. Called by the trainer for each micro-batch.
"""

import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.domain import resolve_dotted
from pipelinerl.finetune.rl.losses.base import (
    Coefficients,
    LossInputs,
    PolicyLoss,
    regularisation,
    value_loss,
)

__all__ = ["Coefficients", "LossInputs", "PolicyLoss", "policy_loss", "total_loss"]


def policy_loss(name: str) -> PolicyLoss:
    """The function that `finetune.rl.policy_loss` names; raises ConfigError when there is none."""
    path = name if "." in name else f"{__name__}.{name}.{name}"
    found: PolicyLoss = resolve_dotted(path, "finetune.rl.policy_loss")
    return found


def total_loss(inputs: LossInputs, config: RLConfig, coefficients: Coefficients) -> torch.Tensor:
    """Policy term plus KL minus entropy bonus plus value loss: the scalar to call `backward` on.

    Raises ValueError when a loss of another package returns anything but a scalar.
    """
    policy = policy_loss(config.policy_loss)(inputs, config)
    if not isinstance(policy, torch.Tensor) or policy.ndim:
        shape = list(policy.shape) if isinstance(policy, torch.Tensor) else type(policy).__name__
        raise ValueError(f"finetune.rl.policy_loss={config.policy_loss} returned {shape}, expected a scalar")
    return policy + regularisation(inputs, config, coefficients) + value_loss(inputs, config)
