"""What a transport is: the bytes of a version on their way (`Transport`), and what the rest asks of it.

A file of this folder is one transport: `NAME.py` has the trainer's side, and the object `NAME` (in capitals)
of `TransportKind`. The launcher asks that object (checks, memory plan, choices) without torch; the trainer
lets it make the sender. Engines of this package receive through `engines/received.py`, vLLM through
`BACKENDS` of `engines/vllm/options.py`. No transport knows of pauses; each fails with TransportError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pipelinerl.config.tree import Config
from pipelinerl.config.variants import TRANSPORTS, Variant
from pipelinerl.engines.kind import engine_kind

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


Held = Callable[[int], StagedUpdate]
"""Stages its tensors as the version of that number."""


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
    copies: bool = False
    """Whether `hold` copies the tensors, so that the trainer may change its own while the copy is sent."""

    def init_info(self, members: Sequence[Member]) -> list[dict[str, Any]]:
        """`init_info` for each engine; begins a new rendezvous."""

    def prepare(self) -> None:
        """What takes long and needs no engine; called while they start."""
        return

    def join(self, deadline_s: float) -> None:
        """The trainer's own part of the rendezvous, while the engines do theirs."""
        return  # nothing where engines fetch a version themselves, as for `send` and `abort`

    def hold(self, named_tensors: Iterable[NamedTensor]) -> Held:
        """The tensors to be staged; where it `copies`, a copy until the next one."""
        return lambda version: self.stage(version, named_tensors)

    def stage(self, version: int, named_tensors: Iterable[NamedTensor]) -> StagedUpdate:
        """Prepare everything that can be prepared while the engines still generate."""

    def send(self, staged: StagedUpdate, deadline_s: float) -> None:
        """Runs while the engines are in /update_weights."""
        return

    def arrived(self, staged: StagedUpdate, url: str) -> bool:
        """Asked beside `send` where it is `ahead`; TransportError where the engine says that it cannot."""

    def sent_tensors(self, staged: StagedUpdate) -> Mapping[str, torch.Tensor] | None:
        """The tensors that engines were sent, by their names, to compare with checksums of what they have.

        None where the transport keeps none: then a probe's log-probabilities alone are compared.
        """
        return None

    def abort(self) -> None:
        """Free a `send` or `join` that hangs, from another thread; a new rendezvous is needed afterwards."""
        return

    def close(self) -> None:
        """Leave no files, threads or connections behind."""


class TransportKind(Variant):
    """A way of a version to the engines. What a subclass does not say is that of files."""

    needs_gpu: bool = False
    """Whether trainer and engines have to be on GPUs."""
    ahead: bool = False
    """Whether engines can receive it beside the weights that they serve; otherwise it arrives in their pause.
    For vLLM the back end `NAME_ahead` of `engines/vllm/options.py` then does so, beside `NAME`."""
    on_one_card: str | None = None
    """Why trainer and engine cannot share a card with it; None if they can."""
    into_several_cards: str | None = None
    """Why an engine of several cards cannot receive ahead from it; None if it can."""
    whole_in_pause: str = ""
    """Why an engine that receives from it in the pause takes no adapters alone; empty if it does."""
    copy_on_card: bool = False
    """Whether a version that is received ahead lies on the engine's cards; otherwise in host memory."""

    def problems(self, cfg: Config, dry_run: bool) -> Iterator[str]:
        engine = engine_kind(cfg)
        if self.name not in engine.transports:
            yield f"weights.transport={self.name}: {engine.other_transport}"
        elif self.needs_gpu and cfg.hardware.kind == "cpu":
            yield f"weights.transport={self.name}: a CPU has none; set file"
        elif (reason := engine.receiver_problem(self.name, weights_ahead(cfg))) is not None:
            yield f"weights.transport={self.name}: {reason}"
        if cfg.finetune.lora.enabled and cfg.weights.lora == "adapter" and (reason := why_merged(cfg)):
            yield f"weights.lora=adapter: {reason}; set weights.lora=merged"

    def not_ahead(self, cards: int) -> str | None:
        """Over what an engine of so many cards receives nothing ahead; None if it does."""
        if not self.ahead:
            return f"weights.transport={self.name}"
        return self.into_several_cards if cards > 1 else None

    def remedies(self, cfg: Config) -> Iterator[str]:
        """Keys by which updates of the engines would take less of the trainer's time."""
        yield f"a larger finetune.weight_update_interval ({cfg.finetune.weight_update_interval})"

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
    can = engine.ahead and transport_kind(cfg).not_ahead(engine.ranks(cfg)) is None
    return can and cfg.weights.ahead is not False


def adapters_alone(cfg: Config) -> bool:
    """Whether adapters travel without the weights that they belong to: `weights.lora`."""
    return cfg.finetune.lora.enabled and cfg.weights.lora != "merged" and not why_merged(cfg)


def why_merged(cfg: Config) -> str:
    """Why adapters of this run do not travel alone, unless they shall be merged; empty if they do."""
    if not (engine := engine_kind(cfg)).loads_adapters:
        return engine.without_adapters
    if not cfg.updates_engines:
        return "this run sends its engines nothing"
    if cfg.debug.use_existing_llms:
        return "engines that run already may have other weights than those of model_path"
    if cfg.sharding is not None:
        return "shards are put together as whole weights"
    if reason := engine.adapters_problem(cfg):
        return reason
    if (reason := transport_kind(cfg).whole_in_pause) and not weights_ahead(cfg):
        return reason
    return engine.adapters_unproven(cfg) if cfg.weights.lora == "auto" else ""


def not_ahead(cfg: Config) -> str:
    """Why `weights.ahead` means nothing here, and what to do: the engine's reason, or the transport's."""
    if not (engine := engine_kind(cfg)).ahead:
        return f"{engine.without_ahead}; leave it out"
    transport = transport_kind(cfg)
    over = transport.not_ahead(engine.ranks(cfg))
    return f"nothing is received ahead over {over}; " + (
        "set weights.transport=file" if transport.ahead else "leave it out"
    )
