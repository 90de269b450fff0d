"""vLLM's side of weight transfer ahead of time, registered as `file_ahead` and `nccl_ahead`.

A version is received into a second copy of the weights, on a thread of the worker, while the engine
generates. What is left for the pause is putting it into place: the first time as vLLM loads weights, layer
by layer, and from then on, where nothing is computed from them, by copies. Only vLLM's workers import this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLWeightTransferEngine,
    NCCLWeightTransferUpdateInfo,
)
from vllm.logger import init_logger

from pipelinerl.weights.receive.placement import Named, NoPlacement, Placement
from pipelinerl.weights.receive.vllm_file import (
    FileInitInfo,
    FileUpdateInfo,
    FileWeightTransferEngine,
    checked_tensors,
    load_in_place,
)
from pipelinerl.weights.wire import packets, read_mark, write_whole

log = init_logger(f"vllm.{__name__}")  # vLLM writes out only what its own loggers say
RECEIVED_DEADLINE_S = 60.0
"""In /finish_weight_update, which is asked for only when everything should have arrived."""


class Receiving:
    """A version on its way into memory beside the model, on a thread that dies with the process."""

    def __init__(self, receive: Callable[[], Named]) -> None:
        self._receive = receive
        self._tensors: Named = ()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="receive-weights", daemon=True)
        self._thread.start()

    def result(self) -> Named:
        """The tensors by name, once they are there; raises what hindered it, or TimeoutError."""
        self._thread.join(RECEIVED_DEADLINE_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the version has not arrived {RECEIVED_DEADLINE_S:g} s after its finish")
        if self._error is not None:
            raise self._error
        return self._tensors

    def _run(self) -> None:
        try:
            self._tensors = self._receive()
        except Exception as error:  # it belongs to whoever finishes the update
            self._error = error


class _Ahead:
    """The steps of an update, whatever it is received through."""

    device: torch.device
    model: torch.nn.Module
    model_config: Any
    vllm_config: Any
    parse_update_info: Callable[[dict[str, Any]], Any]
    _receiving: Receiving | None = None
    _placement: Placement | None = None
    """None before the first version, and for a model that has to be loaded layer by layer."""
    _layer_by_layer: torch.nn.Module | None = None
    """A model that has turned out to be one of these; it is not looked at in every pause."""

    def receiver(self, update_info: Any) -> Callable[[], Named]:
        """What has to run on the thread; memory is reserved here, on the worker's own."""
        raise NotImplementedError

    def start_weight_update(self) -> None:
        """Nothing changes before the version is there as a whole."""
        self._receiving = None

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Begins to receive and returns; raises ValueError for an update that cannot be."""
        self._receiving = Receiving(self.receiver(self.parse_update_info(update_info)))

    def finish_weight_update(self) -> None:
        """Put what was received into place. Between two steps: a worker does one thing at a time."""
        if self._receiving is None:
            raise ValueError("finish_weight_update before update_weights: there is nothing to put into place")
        tensors, self._receiving = self._receiving.result(), None
        if self._placement is not None and self._placement.holds(self.model):
            self._placement.put(tensors)
            torch.accelerator.synchronize()
            return
        self._placement = None  # its views would keep memory that the model has given up
        with set_current_vllm_config(self.vllm_config):
            load_in_place(self.model, self.model_config, self.device, tensors)
        if self.model is not self._layer_by_layer:
            self._placement = self._found(tensors)

    def _found(self, tensors: Named) -> Placement | None:
        """Where the version just loaded lies; CPU builds pack weights, and quantisation converts them."""
        try:
            if self.device.type != "cuda" or self.vllm_config.quant_config is not None:
                raise NoPlacement(f"on {self.device.type}, or quantised, weights are converted")
            packed = getattr(self.model, "packed_modules_mapping", None) or {}
            found = Placement.of(self.model, tensors, packed)
        except NoPlacement as reason:
            log.info("weights are loaded layer by layer: %s", reason)
            self._layer_by_layer = self.model
            return None
        log.info("weights are put into place by %d copies", len(tensors))
        return found


class FileAheadEngine(_Ahead, FileWeightTransferEngine):
    """Reads a version's file into host memory (pinned where there is a GPU) and says so beside the file."""

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Notes the name under which this engine says that it has read a file."""
        self._reader = init_info.reader

    def receiver(self, update_info: FileUpdateInfo) -> Callable[[], Named]:
        parallel = self.parallel_config
        rank = parallel.data_parallel_index * parallel.world_size + parallel.rank
        mark = read_mark(Path(update_info.path), self._reader, rank)

        def receive() -> Named:
            said = ""
            try:
                tensors = checked_tensors(update_info)
                if self.device.type != "cpu":
                    torch.accelerator.set_device_index(self.device)
                    tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
                return list(tensors.items())
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
                raise
            finally:
                write_whole(mark, said.encode())

        return receive


class NcclAheadEngine(_Ahead, NCCLWeightTransferEngine):
    """Receives the trainer's broadcasts into one buffer on the GPU, on a stream of its own.

    The buffer holds a whole version in the type of the wire. It is kept, so that no allocation waits for the
    kernels of the model, and it is taken from what `gpu-memory-utilization` leaves free.
    """

    _buffer: torch.Tensor | None = None
    _stream: Any = None

    def receiver(self, update_info: NCCLWeightTransferUpdateInfo) -> Callable[[], Named]:
        group = self.model_update_group
        if group is None:
            raise ValueError("update_weights before init_weight_transfer_engine: there is no group yet")
        dtypes = [getattr(torch, name) for name in update_info.dtype_names]
        shapes = [torch.Size(shape) for shape in update_info.shapes]
        sizes = [shape.numel() * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
        ends = [0]
        for size in sizes:
            ends.append(ends[-1] + size)
        # Agreed on with each update, or since 0.32 once.
        limit = getattr(update_info, "packed_buffer_size_bytes", None) or self.packed_buffer_size_bytes
        buffer = self._reserve(ends[-1])

        def receive() -> Named:
            torch.cuda.set_device(self.device)
            for first, last in packets(sizes, limit):
                group.broadcast(buffer[ends[first] : ends[last]], src=0, stream=self._stream)
            self._stream.synchronize()
            return [
                (name, buffer[ends[index] : ends[index + 1]].view(dtypes[index]).view(shapes[index]))
                for index, name in enumerate(update_info.names)
            ]

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
                raise ValueError(
                    f"weights.ahead=true needs {size / 2**30:.1f} GiB on the engine's GPU for a second "
                    f"copy of the weights, {free / 2**30:.1f} GiB are free; set it to false, or lower "
                    "vllm_config.vllm_kwargs.gpu-memory-utilization"
                ) from None
        return self._buffer
