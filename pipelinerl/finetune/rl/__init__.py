"""The reinforcement-learning objective: advantages, filter, loss weights and policy losses.

`populate_rl_data` is loaded on first use, because the rooms that it needs import this one.
"""

from importlib import import_module
from typing import Any

from pipelinerl.config.finetune import RLConfig

__all__ = ["RLConfig", "populate_rl_data"]


def __getattr__(name: str) -> Any:
    if name == "populate_rl_data":
        return import_module("pipelinerl.compat.populate").populate_rl_data
    if name == "rl_step":
        # Upstream's takes a model that gives whole logits, a batch of its own collator and the batch size in
        # the configuration, and returns its own statistics: one of that name could not keep its promises.
        raise ImportError(
            "pipelinerl.finetune.rl has no rl_step: for the loss of a micro-batch call "
            "pipelinerl.finetune.rl.losses.total_loss(LossInputs, RLConfig, Coefficients), for its gradient "
            "and statistics pipelinerl.finetune.step.Learner.accumulate(batch, targets, coefficients)"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
