"""Optimizers by name, with weight decay only where it belongs; called by `build_learner`."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from pipelinerl.finetune.lion import Lion

_DECAYED = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.MultiheadAttention)


@runtime_checkable
class OwnStates(Protocol):
    """An optimizer that keeps states in a form of its own, and saves and restores them as plain tensors."""

    def plain_state(self, parameter: torch.Tensor, state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The whole state of a parameter (collective if it is sharded)."""
        ...

    def own_state(
        self, parameter: torch.Tensor, plain: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """This rank's state of a parameter from a plain one."""
        ...


def decayed_parameters(model: nn.Module) -> set[int]:
    """Ids of the parameters that are decayed: matrices of linear and embedding layers, decided by type.

    Biases and every parameter of a normalisation layer are left alone whatever they are called.
    """
    return {
        id(parameter)
        for module in model.modules()
        if isinstance(module, _DECAYED)
        for name, parameter in module.named_parameters(recurse=False)
        if not name.endswith("bias")
    }


def build_optimiser(
    model: nn.Module,
    name: str = "adamw_torch",
    learning_rate: float = 1e-6,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    on_host: bool = False,
) -> torch.optim.Optimizer:
    """An optimizer over float32 master weights, by its name in the configuration.

    `adamw_torch` (Loshchilov & Hutter 2019) and `adamw_8bit` (torchao's) take `betas` and `epsilon`;
    `adafactor` (Shazeer & Stern 2018, torch's) and `lion` (Chen et al. 2023) have their own constants.
    `on_host`: the parameters of a policy that computes on a card lie in host memory.
    """
    decayed = decayed_parameters(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if id(p) in decayed], "weight_decay": weight_decay},
        {"params": [p for p in trained if id(p) not in decayed], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if name == "adafactor":
        return torch.optim.Adafactor(groups, lr=learning_rate)
    if name == "lion":
        return Lion(groups, lr=learning_rate)
    if name == "adamw_8bit":
        from pipelinerl.finetune.eight_bit import AdamW8bit  # needs the extra `torchao`

        return AdamW8bit(groups, lr=learning_rate, betas=betas, eps=epsilon)
    fused = on_host or all(p.is_cuda for p in trained)
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=epsilon, fused=fused or None)
