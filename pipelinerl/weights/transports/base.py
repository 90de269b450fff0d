"""How the bytes of a version travel: what a transport does for an update, and how it fails (TransportError).

The trainer has the one of `weights.transport` made (`TransportKind.sender`). None of them knows of pauses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

NamedTensor = tuple[str, "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class StagedUpdate:
    """One version, ready to be sent."""

    info: dict[str, Any]  # `update_info` of the engines' /update_weights
    bytes: int
    layout: dict[str, tuple[tuple[int, ...], str]]
    """Name to (shape, dtype), which must be the same for every version of a run."""
    tensors: tuple[torch.Tensor, ...] = ()  # what is only read when it is sent, unchanged until then


@dataclass(frozen=True, slots=True)
class Member:
    """An engine as a transport sees it."""

    url: str
    ranks: int  # processes of the engine that hold weights: tensor x pipeline x data parallel
    version: str | None  # vLLM's; None for an engine that is no vLLM


class TransportError(RuntimeError):
    """The transport could not send or join; another try may. Where none can it is a PermanentUpdateError."""


class Transport(Protocol):
    """Moves the tensors of one version to every participating engine."""

    collective: bool = False
    """Whether all engines take part in each transfer together: one that is missing stops the others, and a
    change of membership needs a new rendezvous of everybody."""
    ahead: bool
    """Whether engines receive a version beside the one they generate with, and are paused only to change."""

    def init_info(self, members: Sequence[Member]) -> list[dict[str, Any]]:
        """`init_info` for each engine; begins a new rendezvous."""

    def prepare(self) -> None:
        """What takes long and needs no engine; called while they start."""
        return

    def join(self, deadline_s: float) -> None:
        """The trainer's own part of the rendezvous, while the engines do theirs."""
        return  # nothing where engines fetch a version themselves, as for `send` and `abort`

    def stage(self, version: int, named_tensors: Iterable[NamedTensor]) -> StagedUpdate:
        """Prepare everything that can be prepared while the engines still generate."""

    def send(self, staged: StagedUpdate, deadline_s: float) -> None:
        """Runs while the engines are in /update_weights."""
        return

    def arrived(self, staged: StagedUpdate, url: str) -> bool:
        """Asked beside `send` where it is `ahead`; TransportError where the engine says that it cannot."""

    def abort(self) -> None:
        """Free a `send` or `join` that hangs, from another thread; a new rendezvous is needed afterwards."""
        return

    def close(self) -> None:
        """Leave no files, threads or connections behind."""
