"""What the publisher needs from a transport: one interface for files, NCCL and whatever comes later."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

NamedTensor = tuple[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class StagedUpdate:
    """One version, ready to be sent."""

    info: dict[str, Any]
    """`update_info` of the engines' /update_weights."""
    bytes: int
    layout: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Name to (shape, dtype), which must be the same for every version of a run."""


class Transport(Protocol):
    """Moves the tensors of one version to every participating engine."""

    def init_info(self, world_sizes: list[int]) -> list[dict[str, Any]]:
        """`init_info` for each engine, given the ranks each of them has."""
        ...

    def join(self, deadline_s: float) -> None:
        """The publisher's own part of the rendezvous, while the engines do theirs."""
        ...

    def stage(self, version: int, named_tensors: Iterable[NamedTensor]) -> StagedUpdate:
        """Prepare everything that can be prepared while the engines still generate."""
        ...

    def send(self, staged: StagedUpdate, deadline_s: float) -> None:
        """Runs while the engines are in /update_weights; nothing to do when they read by themselves."""
        ...

    def close(self) -> None:
        """Leave no files, threads or connections behind."""
        ...
