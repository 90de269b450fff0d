"""Optimizers by name, with weight decay only where it belongs."""

from typing import Any

import torch
from torch import nn

from pipelinerl.finetune.lion import Lion

_DECAYED = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.MultiheadAttention)


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
) -> torch.optim.Optimizer:
    """An optimizer over float32 master weights, by its name in the configuration.

    `adamw_torch` (Loshchilov & Hutter 2019) takes `betas` and `epsilon`; `adafactor` (Shazeer & Stern 2018,
    torch's) and `lion` (Chen et al. 2023) have their own constants.
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
    fused = all(p.is_cuda for p in trained)
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=epsilon, fused=fused or None)
