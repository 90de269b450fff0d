"""`weights.transport=nccl`: packed broadcasts from the trainer's GPU to those of all engines.

The engines run vLLM's stock `nccl` back-end, or this package's, which receives while they generate; both take
bytes in packets. Parameters are cast while they are copied into a packet, so this side needs no second model,
only `weights.buffers` packets of `weights.buffer_mb`. torch is imported where it is used: the launcher asks
`NCCL` without it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pipelinerl.base.ports import LOOPBACK, ReservedPorts
from pipelinerl.config.tree import Config
from pipelinerl.engines.vllm.options import VllmVersion, packing, trainer_endpoint
from pipelinerl.engines.wire import PermanentUpdateError, lacks_memory, packets
from pipelinerl.weights.transports.base import (
    Member,
    NamedTensor,
    StagedUpdate,
    Transport,
    TransportError,
    TransportKind,
    adapters_alone,
    weights_ahead,
)

if TYPE_CHECKING:
    import torch

POLL_S = 0.0002
PORTS_TRIED = 200
Connect = Callable[[dict[str, Any]], Any]
"""Joins the group as rank 0, given master_address, master_port and world_size; blocks until all have. Returns
vLLM's communicator: `broadcast(tensor, src, stream)`, and `destroy()`, which aborts what is under way."""


class NcclTransport(Transport):
    """Rank 0 of a group with every rank of every engine; one packed broadcast per version."""

    collective = True

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        buffer_bytes: int = 256 * 2**20,
        buffers: int = 2,
        first_port: int = 9000,
        address: str = LOOPBACK,
        connect: Connect | None = None,
        ahead: bool = False,
        adapter_scale: float | None = None,
    ) -> None:
        """`ahead`: engines have this package's back-end; they reach the rendezvous at `address`. `connect`
        replaces vLLM's helper in tests. `adapter_scale`: as of `FileTransport`; `ahead` alone."""
        self.device, self.dtype, self.ahead = device, dtype, ahead
        self._adapter_scale = adapter_scale
        self._limit, self._buffers = buffer_bytes, buffers
        self._first_port, self._address, self._connect = first_port, address, connect
        # Of several runs on a host more than one may look for a port at the same moment.
        self._ports = ReservedPorts(free=partial(_can_be_bound, address))
        self._rendezvous: dict[str, Any] = {}
        self._packed_at_init = False
        self._communicator: Any = None
        self._lanes: list[_Lane] = []
        self._aborted = threading.Event()

    def init_info(self, members: Sequence[Member]) -> list[dict[str, Any]]:
        """Ranks of each engine in a new group; the former one is left."""
        self.abort()
        self._aborted.clear()
        # A stream of the former ones may still hold a broadcast that was aborted.
        self._lanes = []
        self._packed_at_init = _packed_at_init(members)
        self._rendezvous = {
            "master_address": self._address,
            "master_port": self._take_port(),
            "world_size": 1 + sum(one.ranks for one in members),
        }
        agreed = packing(self._limit, self._buffers) if self._packed_at_init else {}
        if self._adapter_scale is not None:
            agreed |= {"adapters": True}
        infos, offset = [], 1
        for one in members:
            infos.append({**self._rendezvous, "rank_offset": offset, **agreed})
            offset += one.ranks
        return infos

    def prepare(self) -> None:
        """Import vLLM, which takes seconds; `join` says what is wrong where it cannot be imported."""
        with suppress(ImportError):
            self._connect = self._connect or trainer_endpoint()

    def join(self, deadline_s: float) -> None:
        """Blocks until every engine is in the group; the store behind it gives up after 300 s by itself."""
        connect = self._connect or trainer_endpoint()
        self._use_device()
        communicator = connect(self._rendezvous)
        # An abort meanwhile found no communicator that it could have destroyed.
        if self._aborted.is_set():
            communicator.destroy()
            raise TransportError("the rendezvous was given up")
        self._communicator = communicator

    def stage(self, version: int, named_tensors: Iterable[NamedTensor]) -> StagedUpdate:
        """Names, shapes and wire type; the tensors are read by `send`."""
        named = [(name, tensor.detach()) for name, tensor in named_tensors]
        info: dict[str, Any] = {
            "names": [name for name, _ in named],
            "dtype_names": [str(self.dtype).removeprefix("torch.")] * len(named),
            "shapes": [list(tensor.shape) for _, tensor in named],
        }
        if self._adapter_scale is not None:
            info["adapter_scale"] = self._adapter_scale
        if not self._packed_at_init:
            info |= packing(self._limit, self._buffers)
        # The optimizer's kernels must have ended before other streams read the weights.
        if self.device.type == "cuda":
            import torch

            torch.cuda.current_stream(self.device).synchronize()
        size = sum(tensor.numel() for _, tensor in named) * self.dtype.itemsize
        layout = {name: (tuple(tensor.shape), str(self.dtype)) for name, tensor in named}
        return StagedUpdate(info, size, layout, tuple(tensor for _, tensor in named))

    def send(self, staged: StagedUpdate, deadline_s: float) -> None:
        """Broadcast every packet; TransportError at the deadline, after `abort`, or when NCCL fails.

        PermanentUpdateError where this GPU has no memory for the packets.
        """
        communicator = self._communicator
        if communicator is None:
            raise TransportError("no group of engines; the rendezvous comes first")
        end = time.monotonic() + deadline_s
        self._use_device()
        sizes = [tensor.numel() * self.dtype.itemsize for tensor in staged.tensors]
        cuts = list(packets(sizes, self._limit))
        elements = max((sum(sizes[start:stop]) for start, stop in cuts), default=0) // self.dtype.itemsize
        if not self._lanes or len(self._lanes[0].buffer) < elements:
            self._lanes = self._make_lanes(elements)
        for number, (start, stop) in enumerate(cuts):
            # One lane is filled while another is broadcast.
            lane = self._lanes[number % len(self._lanes)]
            self._wait(lane, end)
            lane.send(communicator, staged.tensors[start:stop])
        for lane in self._lanes:
            self._wait(lane, end)

    def _make_lanes(self, elements: int) -> list[_Lane]:
        self._lanes = []  # smaller ones would lie beside the new ones
        try:
            return [_Lane(elements, self.dtype, self.device) for _ in range(self._buffers)]
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            size = elements * self.dtype.itemsize / 2**30
            raise PermanentUpdateError(
                f"no memory is left on the trainer's {self.device} for weights.buffers={self._buffers} "
                f"packets of {size:.2f} GiB (weights.buffer_mb={self._limit // 2**20}, or the largest "
                "tensor); lower weights.buffers or weights.buffer_mb, or finetune.seq_length"
            ) from error

    def arrived(self, staged: StagedUpdate, url: str) -> bool:
        """A broadcast has ended everywhere when `send` has returned, which is waited for as well."""
        return True

    def abort(self) -> None:
        """Leave the group, and with it abort a broadcast; `send` then ends with TransportError."""
        self._aborted.set()
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            communicator.destroy()

    def close(self) -> None:
        self.abort()
        self._lanes.clear()
        self._ports.close()

    def _take_port(self) -> int:
        """A port that no other run gets before the rendezvous has bound it."""
        self._ports.close()
        first = self._first_port
        for port in range(first, min(first + PORTS_TRIED, 65536)):
            if self._ports.take(port):
                return port
        raise PermanentUpdateError(
            f"world.actor_group_port={first}: {PORTS_TRIED} ports from here are taken; choose another"
        )

    def _use_device(self) -> None:
        # CUDA's current device belongs to the thread, and each join and send runs in a new one.
        if self.device.type == "cuda":
            import torch

            torch.cuda.set_device(self.device)

    def _wait(self, lane: _Lane, end: float) -> None:
        # Polls, because a synchronisation with an engine that hangs could not be given up.
        while True:
            if self._aborted.is_set():
                raise TransportError("the broadcast was aborted")
            if lane.idle():
                return
            if time.monotonic() > end:
                raise TransportError("the engines did not take the broadcast before its deadline")
            time.sleep(POLL_S)


class _Lane:
    """One packet's memory and the stream that fills and broadcasts it."""

    def __init__(self, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        import torch

        self.buffer = torch.empty(elements, dtype=dtype, device=device)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def idle(self) -> bool:
        return self._stream is None or bool(self._stream.query())

    def send(self, communicator: Any, tensors: Sequence[torch.Tensor]) -> None:
        """Enqueue copies, with the cast, and the broadcast of their bytes."""
        import torch

        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            used = 0
            for tensor in tensors:
                part = self.buffer[used : used + tensor.numel()]
                part.view(tensor.shape).copy_(tensor, non_blocking=True)
                used += tensor.numel()
            communicator.broadcast(self.buffer[:used].view(torch.uint8), src=0, stream=self._stream)


class Nccl(TransportKind):
    """Needs a GPU for each process of the group."""

    name = "nccl"
    ahead = True
    needs_gpu = True
    on_one_card = "NCCL does not connect processes on one GPU"
    into_several_cards = "NCCL into an engine of several cards"
    """Its broadcasts would run beside those that connect the engine's cards."""
    whole_in_pause = "over NCCL, whole weights alone are received in the pause (weights.transport=file: both)"
    copy_on_card = True

    def sender(self, cfg: Config, elements: int, dtype: torch.dtype, device: torch.device) -> NcclTransport:
        import torch

        if device.type != "cuda":
            raise ValueError(
                f"weights.transport=nccl: the trainer runs on {device.type}, which has no NCCL; use file"
            )
        # Adapters in float32, as in files; only the back end that receives ahead takes them.
        scale = cfg.finetune.lora.scale if adapters_alone(cfg) else None
        return NcclTransport(
            device,
            dtype if scale is None else torch.float32,
            buffer_bytes=cfg.weights.buffer_mb * 2**20,
            buffers=cfg.weights.buffers,
            first_port=cfg.world.actor_group_port,
            address=cfg.jobs_of("finetune")[0].hostname if cfg.several_hosts else LOOPBACK,
            ahead=weights_ahead(cfg),
            adapter_scale=scale,
        )


NCCL = Nccl()


def _packed_at_init(members: Sequence[Member]) -> bool:
    """Where the engines expect the packing. PermanentUpdateError where one is no vLLM, or they differ."""
    places = set()
    for one in members:
        if one.version is None:
            raise PermanentUpdateError(
                f"{one.url} does not say its version; weights.transport=nccl needs vLLM"
            )
        places.add(VllmVersion.parse(one.version).packed_at_init)
    # Until 0.27 each update_info has the packing, since 0.28 init_info; each refuses the other's place.
    if len(places) > 1:
        versions = ", ".join(sorted({str(one.version) for one in members}))
        raise PermanentUpdateError(f"engines of vLLM {versions} cannot share a group; run one version")
    return places.pop()


def _can_be_bound(address: str, port: int) -> bool:
    # Without SO_REUSEADDR: the store of the rendezvous before may linger at its port.
    with socket.socket() as probe, suppress(OSError):
        probe.bind((address, port))
        return True
    return False
