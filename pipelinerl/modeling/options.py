"""How a model is trained: recomputation of activations, adapters, sharding. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipelinerl.config.finetune import Sharding

__all__ = ["Checkpointing", "LoraSettings", "Sharding"]

Checkpointing = bool | int | Literal["selective"]
"""False: keep every activation. True: keep each layer's input only. An integer n: the same for every n-th
layer. "selective": keep attention and narrow matrix products, recompute the wide ones and what is cheap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """Low-rank adapters; names are those of the configuration."""

    r: int = 16
    alpha: float = 16.0
    dropout: float = 0.0
    target_modules: tuple[str, ...] = ()
    """Names of linear layers; none: all of the decoder."""
