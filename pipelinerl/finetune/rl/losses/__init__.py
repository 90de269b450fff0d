"""Policy losses by their configuration name, and the objective that they are part of.

A loss is a file of this folder with an object of the same name, or an object or function of another package
by its dotted path (`base.PolicyLoss`). Called by the trainer for each micro-batch, and by the launcher for
what a loss does not read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelinerl.config.finetune import RLConfig
from pipelinerl.domain import resolve_dotted
from pipelinerl.finetune.rl.losses.base import (
    Coefficients,
    LossInputs,
    PolicyLoss,
    regularisation,
    value_loss,
)
from pipelinerl.finetune.rl.losses.correction import corrected

if TYPE_CHECKING:
    import torch

__all__ = ["LOSSES", "Coefficients", "LossInputs", "PolicyLoss", "declared", "policy_loss", "total_loss"]

_NO_LOSSES = ("__init__", "base", "correction")
LOSSES = tuple(
    sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in _NO_LOSSES)
)
"""Names of the losses that come with the package."""


class _Function(PolicyLoss):
    """A plain function of another package."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, inputs: LossInputs, rl: RLConfig) -> torch.Tensor:
        term: torch.Tensor = self._function(inputs, rl)
        return term


def policy_loss(name: str) -> PolicyLoss:
    """The loss that `finetune.rl.policy_loss` names; raises ConfigError when there is none."""
    found = resolve_dotted(name if "." in name else f"{__name__}.{name}.{name}", "finetune.rl.policy_loss")
    return found if isinstance(found, PolicyLoss) else _Function(found)


def declared(name: str) -> PolicyLoss:
    """The loss for what it declares; one of another package, which may import torch, is taken to read all."""
    return policy_loss(name) if name in LOSSES else PolicyLoss()


def total_loss(inputs: LossInputs, config: RLConfig, coefficients: Coefficients) -> torch.Tensor:
    """Policy term plus KL minus entropy bonus plus value loss: the scalar to call `backward` on.

    Raises ValueError when a loss of another package returns anything but a scalar.
    """
    policy = policy_loss(config.policy_loss)(corrected(inputs, config.correction), config)
    if not isinstance(policy, type(inputs.weight_N)) or policy.ndim:
        shape = list(policy.shape) if isinstance(policy, type(inputs.weight_N)) else type(policy).__name__
        raise ValueError(f"finetune.rl.policy_loss={config.policy_loss} returned {shape}, expected a scalar")
    return policy + regularisation(inputs, config, coefficients) + value_loss(inputs, config)
