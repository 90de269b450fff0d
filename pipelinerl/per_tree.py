"""What all rollouts of a worker process share, made once per configuration tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from omegaconf import DictConfig

Value = TypeVar("Value")


class PerTree(Generic[Value]):
    """`make(cfg)` on first use and whenever another tree is given; trees are compared by identity.

    A worker process has one tree, so that only the last one is held.
    """

    def __init__(self, make: Callable[[DictConfig], Value]) -> None:
        self._make = make
        self._held: tuple[DictConfig, Value] | None = None

    def of(self, cfg: DictConfig) -> Value:
        """The value of this tree."""
        if self._held is None or self._held[0] is not cfg:
            self._held = (cfg, self._make(cfg))
        return self._held[1]
