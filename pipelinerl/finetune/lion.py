"""Lion: the sign of an interpolated momentum as update (Chen et al. 2023, algorithm 2).

`build_optimiser` makes it for `finetune.optim=lion`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """One float32 momentum per parameter, decoupled weight decay; takes about a third of AdamW's rate."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-6,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; a closure is not supported."""
        if closure is not None:
            raise ValueError("Lion takes no closure")
        for group in self.param_groups:
            fast, slow = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                momentum = state["exp_avg"]
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(momentum.lerp(parameter.grad, 1 - fast).sign_(), alpha=-group["lr"])
                momentum.lerp_(parameter.grad, 1 - slow)
