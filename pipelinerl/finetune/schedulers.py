"""Learning-rate schedules, indexed by completed optimizer steps; called by `build_learner`.

A pure function of the step, so that a resume needs the number of steps and nothing else.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch.optim.lr_scheduler import LambdaLR


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


def build_scheduler(
    optimiser: torch.optim.Optimizer, kind: str, warmup_steps: int, total_steps: int
) -> LambdaLR:
    """A scheduler to be stepped once per optimizer step."""
    factor: Callable[[int], float] = partial(
        learning_rate_factor, kind=kind, warmup_steps=warmup_steps, total_steps=total_steps
    )
    return LambdaLR(optimiser, factor)
