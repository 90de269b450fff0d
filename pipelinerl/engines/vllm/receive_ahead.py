"""vLLM's side of weight transfer ahead of the pause, registered as `file_ahead` and `nccl_ahead`.

A version is received into a second copy of the weights, on a thread of the worker, while the engine
generates; the pause only loads it into the model. Only vLLM's workers import this.
"""

from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLWeightTransferEngine,
    NCCLWeightTransferUpdateInfo,
)
from vllm.logger import init_logger

from pipelinerl.base.files import write_whole
from pipelinerl.base.threads import in_thread
from pipelinerl.engines.version_file import HostMemory
from pipelinerl.engines.vllm.in_place_load import InPlaceLoad, Named, NoInPlaceLoad
from pipelinerl.engines.vllm.receive_adapters import AdapterVersion, TakesAdapters
from pipelinerl.engines.vllm.receive_file import (
    FileInitInfo,
    FileUpdateInfo,
    FileWeightTransferEngine,
    checked_tensors,
    reload_layerwise,
)
from pipelinerl.engines.wire import PermanentUpdateError, lacks_memory, packets, read_mark

log = init_logger(f"vllm.{__name__}")  # vLLM writes out only what its own loggers say
# In /finish_weight_update, which is asked for only when everything should have arrived.
RECEIVED_DEADLINE_S = 60.0


class _Ahead(TakesAdapters):
    """The steps of an update, whatever it is received through."""

    parse_update_info: Callable[[dict[str, Any]], Any]
    _received: Future[Named | AdapterVersion] | None = None
    # None before the first version, and for a model that has to be loaded layer by layer.
    _in_place: InPlaceLoad | None = None
    # A model that has turned out to be one of these; it is not looked at in every pause.
    _layer_by_layer: torch.nn.Module | None = None

    def receiver(self, update_info: Any) -> Callable[[], Named | AdapterVersion]:
        """What has to run on the thread. Memory is reserved here, on the worker's own."""
        raise NotImplementedError

    def start_weight_update(self) -> None:
        """Nothing changes before the version is there as a whole."""
        self._received = None

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Begins to receive and returns; PermanentUpdateError for an update that cannot be."""
        self._received = in_thread(self.receiver(self.parse_update_info(update_info)))

    def finish_weight_update(self) -> None:
        """Load what was received. Between two steps: a worker does one thing at a time."""
        if self._received is None:
            raise ValueError("finish_weight_update before update_weights: there is nothing to load")
        if not wait([self._received], RECEIVED_DEADLINE_S).done:
            raise TimeoutError(f"the version has not arrived {RECEIVED_DEADLINE_S:g} s after its finish")
        tensors, self._received = self._received.result(), None
        if isinstance(tensors, AdapterVersion):
            self.put_adapters(tensors)
            return
        self.forget_adapters()
        if self._in_place is not None and self._in_place.fits(self.model):
            self._in_place.load(tensors)
            torch.accelerator.synchronize()
            return
        # Its views would keep memory that the model has given up.
        self._in_place = None
        # The first version the way vLLM loads: what that leaves shows whether copies would do the same.
        with set_current_vllm_config(self.vllm_config):
            reload_layerwise(self, tensors)
        if self.model is not self._layer_by_layer:
            self._in_place = self._find_places(tensors)

    def _find_places(self, tensors: Named) -> InPlaceLoad | None:
        """Where the version just loaded lies, if later ones can be copied there."""
        try:
            # CPU builds pack weights for their matrix products, quantisation converts them.
            if self.device.type != "cuda" or self.vllm_config.quant_config is not None:
                raise NoInPlaceLoad(f"on {self.device.type}, or quantised, weights are converted")
            packed = getattr(self.model, "packed_modules_mapping", None) or {}
            found = InPlaceLoad(self.model, tensors, packed)
        except NoInPlaceLoad as reason:
            log.info("weights are loaded layer by layer: %s", reason)
            self._layer_by_layer = self.model
            return None
        log.info("weights are put into place by %d copies", len(tensors))
        return found


class FileAheadEngine(_Ahead, FileWeightTransferEngine):
    """Reads a version's file into host memory (pinned where there is a GPU) and says so beside the file."""

    # Held by the thread that reads: all versions are read into the same memory.
    _reading = Lock()

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Notes the name under which this engine says that it has read a file."""
        self._reader = init_info.reader
        super().init_transfer_engine(init_info)

    def receiver(self, update_info: FileUpdateInfo) -> Callable[[], Named | AdapterVersion]:
        parallel = self.parallel_config
        rank = parallel.data_parallel_index * parallel.world_size + parallel.rank
        mark = read_mark(Path(update_info.path), self._reader, rank)

        def receive() -> Named | AdapterVersion:
            try:
                found = self.ready(self._read(update_info), update_info.adapter_scale)
            except Exception as error:
                write_whole(mark, f"{type(error).__name__}: {error}")
                raise
            write_whole(mark, "")
            return found

        return receive

    def _read(self, info: FileUpdateInfo) -> dict[str, torch.Tensor]:
        if not self._reading.acquire(timeout=RECEIVED_DEADLINE_S):
            raise TimeoutError(f"an earlier version is still being read after {RECEIVED_DEADLINE_S:g} s")
        try:
            memory = self.memory()
            tensors = checked_tensors(info, memory)
            if self.device.type != "cpu":
                torch.accelerator.set_device_index(self.device)
                _pin(memory, info.bytes)
            return tensors
        finally:
            self._reading.release()


@dataclass(kw_only=True)
class NcclInitInfo(NCCLWeightTransferEngine.init_info_cls):
    """vLLM's own, and whether adapters alone will come."""

    adapters: bool = False


@dataclass
class NcclUpdateInfo(NCCLWeightTransferUpdateInfo):
    """vLLM's own, and what the products of adapters are multiplied by; null for whole weights."""

    adapter_scale: float | None = None


class NcclAheadEngine(_Ahead, NCCLWeightTransferEngine):
    """Receives the trainer's broadcasts into one buffer on the GPU, on a stream of its own.

    The buffer holds a whole version in the type of the wire. It is taken from what `gpu-memory-utilization`
    leaves free, and kept, so that no allocation waits for the kernels of the model. Where adapters travel
    alone it is small, and the weights that they are added to are kept there.
    """

    init_info_cls, update_info_cls = NcclInitInfo, NcclUpdateInfo
    keeps_on_card = True

    _buffer: torch.Tensor | None = None
    _stream: Any = None

    def init_transfer_engine(self, init_info: NcclInitInfo) -> None:
        """Joins the group, then looks for the places of adapters: nobody waits for that in the rendezvous."""
        super().init_transfer_engine(init_info)
        if init_info.adapters:
            self.expect_adapters()

    def receiver(self, update_info: NcclUpdateInfo) -> Callable[[], Named | AdapterVersion]:
        group = self.model_update_group
        if group is None:
            raise ValueError("update_weights before init_weight_transfer_engine: there is no group yet")
        dtypes = [_dtype(name) for name in update_info.dtype_names]
        shapes = [torch.Size(shape) for shape in update_info.shapes]
        sizes = [shape.numel() * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
        ends = list(accumulate(sizes, initial=0))
        # In each update until 0.27; since 0.28 agreed on once, in init_info, and kept by the base class.
        limit = getattr(update_info, "packed_buffer_size_bytes", None) or self.packed_buffer_size_bytes
        buffer = self._reserve(ends[-1])

        def receive() -> Named | AdapterVersion:
            # CUDA's current device belongs to the thread.
            torch.cuda.set_device(self.device)
            for start, stop in packets(sizes, limit):
                group.broadcast(buffer[ends[start] : ends[stop]], src=0, stream=self._stream)
            self._stream.synchronize()
            tensors = {
                name: buffer[ends[index] : ends[index + 1]].view(dtypes[index]).view(shapes[index])
                for index, name in enumerate(update_info.names)
            }
            return self.ready(tensors, update_info.adapter_scale)

        return receive

    def _reserve(self, size: int) -> torch.Tensor:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        if self._buffer is None or self._buffer.numel() < size:
            self._buffer = None
            try:
                self._buffer = torch.empty(size, dtype=torch.uint8, device=self.device)
            except torch.cuda.OutOfMemoryError:
                free = torch.cuda.mem_get_info(self.device)[0]
                raise PermanentUpdateError(
                    f"weights.ahead=true needs {size / 2**30:.1f} GiB on the engine's GPU for a second "
                    f"copy of the weights, {free / 2**30:.1f} GiB are free; set it to false, or lower "
                    "vllm_config.vllm_kwargs.gpu-memory-utilization"
                ) from None
        return self._buffer


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise PermanentUpdateError(
            f"tensors of type {name} were announced, which the engine's torch {torch.__version__} does not "
            "have; set vllm_config.vllm_kwargs.dtype to bfloat16 or float32"
        )
    return found


def _pin(memory: HostMemory, size: int) -> None:
    """Page-lock it: a GPU then copies from it while it computes."""
    try:
        memory.pin(size)
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        raise PermanentUpdateError(
            f"weights.ahead=true needs {size / 2**30:.1f} GiB of page-locked host memory for a "
            "second copy of the weights; set it to false, or raise the limit of the engine's host (ulimit -l)"
        ) from None
