"""Optimizers by name, with weight decay only where it belongs, and schedules of the learning rate.

Called by `build_learner` and by the recipe of a small model.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from pipelinerl.config.finetune import FinetuneConfig
from pipelinerl.finetune.lion import Lion


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
    """Ids of the parameters that are decayed: those of two or more dimensions.

    Biases, which experts have in two dimensions, and every parameter of a normalisation layer, of which those
    of a head have two, are left alone. Experts and routers are parameters without a layer of torch.
    """
    return {
        id(parameter)
        for module in model.modules()
        if "norm" not in type(module).__name__.lower()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() >= 2 and not name.endswith("bias")
    }


def build_optimiser(
    model: nn.Module, finetune: FinetuneConfig, on_host: bool = False
) -> torch.optim.Optimizer:
    """An optimizer over float32 master weights, as `finetune.optim` and the keys beside it say.

    `adamw_torch` (Loshchilov & Hutter 2019) and `adamw_8bit` (torchao's) take betas and epsilon;
    `adafactor` (Shazeer & Stern 2018, torch's) and `lion` (Chen et al. 2023) have their own constants.
    `on_host`: shards of a trainer that computes on a card lie in host memory.
    """
    decayed, rate = decayed_parameters(model), finetune.learning_rate
    trained = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if id(p) in decayed], "weight_decay": finetune.weight_decay},
        {"params": [p for p in trained if id(p) not in decayed], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if finetune.optim == "adafactor":
        return torch.optim.Adafactor(groups, lr=rate)
    if finetune.optim == "lion":
        return Lion(groups, lr=rate)
    betas, epsilon = (finetune.adam_beta1, finetune.adam_beta2), finetune.adam_epsilon
    if finetune.optim == "adamw_8bit":
        from pipelinerl.finetune.eight_bit import AdamW8bit  # needs the extra `torchao`

        return AdamW8bit(groups, lr=rate, betas=betas, eps=epsilon)
    fused = on_host or all(p.is_cuda for p in trained)
    return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=epsilon, fused=fused or None)


def build_scheduler(optimiser: torch.optim.Optimizer, finetune: FinetuneConfig) -> LambdaLR:
    """A scheduler to be stepped once per optimizer step; its horizon is `max_train_steps`.

    A pure function of the step, so that a resume needs the number of steps and nothing else.
    """
    kind, warmup, total = finetune.lr_scheduler_type, finetune.num_warmup_steps, finetune.max_train_steps
    return LambdaLR(
        optimiser, partial(learning_rate_factor, kind=kind, warmup_steps=warmup, total_steps=total)
    )


def learning_rate_factor(step: int, kind: str, warmup_steps: int, total_steps: int) -> float:
    """Multiplier of the peak rate at `step` completed steps: linear warm-up, then the named decay to 0."""
    if kind != "constant" and step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if kind in ("constant", "constant_with_warmup"):
        return 1.0
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    if kind == "linear":
        return 1.0 - progress
    return 0.5 * (1.0 + math.cos(math.pi * progress))
