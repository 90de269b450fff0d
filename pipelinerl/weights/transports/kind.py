"""What a transport is to a configuration: one object that says all that depends on `weights.transport`.

The launcher asks it (checks, memory plan, choices) and the trainer lets it make the sender. Its object lies
in the file of its sender, which must be importable without torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipelinerl.config.tree import Config
from pipelinerl.config.variants import TRANSPORTS, Variant
from pipelinerl.engines.kind import engine_kind

if TYPE_CHECKING:
    import torch

    from pipelinerl.weights.transports.base import Transport


class TransportKind(Variant):
    """A way of a version to the engines. What a subclass does not say is that of files."""

    needs_gpu: bool = False
    """Whether trainer and engines have to be on GPUs."""
    on_one_card: str | None = None
    """Why trainer and engine cannot share a card with it; None if they can."""
    into_several_cards: str | None = None
    """Why an engine of several cards cannot receive ahead from it; None if it can."""
    copy_on_card: bool = False
    """Whether a version that is received ahead lies on the engine's cards; otherwise in host memory."""

    def problems(self, cfg: Config, dry_run: bool) -> Iterator[str]:
        engine = engine_kind(cfg)
        if self.name not in engine.transports:
            yield f"weights.transport={self.name}: {engine.other_transport}"
        elif self.needs_gpu and cfg.hardware.kind == "cpu":
            yield f"weights.transport={self.name}: a CPU has none; set file"

    def host_bytes(self, cfg: Config, version: float, readers: int) -> float:
        """Bytes of the trainer's host for versions of so many; `readers` processes receive ahead on it."""
        return 0.0

    def sender(self, cfg: Config, elements: int, dtype: torch.dtype, device: torch.device) -> Transport:
        """The trainer's side, for a model of `elements` parameters and a trainer on `device`.

        Raises ValueError for a device that it cannot send from.
        """
        raise NotImplementedError


def transport_kind(cfg: Config) -> TransportKind:
    """The transport of this run's weights."""
    return transport_named(cfg.weights.transport)


def transport_named(name: str) -> TransportKind:
    """The transport that `weights.transport=NAME` means; for a tree that is not typed yet."""
    found: TransportKind = TRANSPORTS.find(name)
    return found


def weights_ahead(cfg: Config) -> bool:
    """Whether engines receive a version while they generate: engine and transport can, and nobody said no."""
    engine = engine_kind(cfg)
    can = engine.ahead and (transport_kind(cfg).into_several_cards is None or engine.ranks(cfg) == 1)
    return can and cfg.weights.ahead is not False


def not_ahead(cfg: Config) -> str:
    """Why `weights.ahead` means nothing here, and what to do: the engine's reason, or the transport's."""
    engine, several = engine_kind(cfg), transport_kind(cfg).into_several_cards
    if engine.ahead:
        return f"nothing is received ahead over {several}; set weights.transport=file"
    return f"{engine.without_ahead}; leave it out"
