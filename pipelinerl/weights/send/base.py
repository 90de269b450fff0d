"""What the publisher needs from a transport: one interface for files, NCCL and whatever comes later."""

from collections.abc import Iterable, Sequence
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


@dataclass(frozen=True, slots=True)
class Member:
    """An engine as a transport sees it."""

    url: str
    ranks: int
    """Processes of the engine that hold weights: tensor x pipeline x data parallel."""
    version: str | None
    """What the engine says about its own version; None from one that has no such route."""


class TransportError(RuntimeError):
    """The transport could not send or join, within its deadline or at all."""


class Transport(Protocol):
    """Moves the tensors of one version to every participating engine."""

    collective: bool
    """Whether all engines take part in each transfer together: one that is missing stops the others, and a
    change of membership needs a new rendezvous of everybody."""
    ahead: bool
    """Whether engines receive a version beside the one they generate with, and are paused only to change."""

    def init_info(self, members: Sequence[Member]) -> list[dict[str, Any]]:
        """`init_info` for each engine; begins a new rendezvous."""
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

    def arrived(self, staged: StagedUpdate, url: str) -> bool:
        """Whether the engine at `url` has all of it, once `send` has returned. Asked where it is `ahead`.

        Raises TransportError when the engine says that it cannot have it.
        """
        ...

    def abort(self) -> None:
        """Free a `send` or `join` that hangs, from another thread; a new rendezvous is needed afterwards."""
        ...

    def close(self) -> None:
        """Leave no files, threads or connections behind."""
        ...
