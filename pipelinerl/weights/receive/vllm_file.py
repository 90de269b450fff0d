"""vLLM's side of the file transport, registered with its weight-transfer factory under the name `file`.

vLLM's workers import this module when an engine is started with `--weight-transfer-config
'{"backend": "file"}'`; nothing else does. It is what lets engine and trainer share one GPU, where NCCL cannot
connect them, and what a CPU build of vLLM is updated with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from pipelinerl.weights.wire import checksum


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """Nothing to agree on, but for an engine that reads ahead."""

    reader: str = ""
    """What it calls itself where it says that it has read a file."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """Where one version lies, and how to recognise that it is whole."""

    path: str
    version: str
    bytes: int
    checksum: str


class FileWeightTransferEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):
    """Loads a version from a safetensors file that this host can read."""

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """No rendezvous."""

    def start_weight_update(self) -> None:
        """Nothing changes before the file has been checked."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As in the base class, but without an accelerator where there is none."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Check the whole file, then load it; ValueError, with the old weights in place, if it is damaged."""
        tensors = checked_tensors(update_info)
        load_in_place(self.model, self.model_config, self.device, tensors.items())

    def finish_weight_update(self) -> None:
        """`receive_weights` has done everything."""

    def shutdown(self) -> None:
        """Nothing is held."""

    @staticmethod
    def trainer_send_weights(iterator: Iterator[Any], trainer_args: dict[str, Any] | Any) -> None:
        """The trainer writes files through `pipelinerl.weights.send.file`, without vLLM."""
        raise NotImplementedError("weights are written by pipelinerl.weights.send.file.FileTransport")


def load_in_place(
    model: torch.nn.Module,
    model_config: Any,
    device: torch.device,
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> None:
    """Give the served model a version's tensors, on whatever device they are, and wait until it has them.

    In the order of the layers: vLLM keeps what it has of a layer until it has all of it.
    """
    initialize_layerwise_reload(model)
    moved: Iterator[tuple[str, torch.Tensor]] = (
        (name, tensor.to(device, non_blocking=True))
        for name, tensor in sorted(tensors, key=lambda one: _in_order(one[0]))
    )
    model.load_weights(moved)
    finalize_layerwise_reload(model, model_config)
    _restore_tie(model)
    if device.type != "cpu":
        torch.accelerator.synchronize()


def _in_order(name: str) -> list[tuple[int, str]]:
    """Sorts numbers in names by their value."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def checked_tensors(info: FileUpdateInfo) -> dict[str, torch.Tensor]:
    """The file's tensors on the CPU, by name; ValueError if it is not what was announced."""
    data = Path(info.path).read_bytes()
    if len(data) != info.bytes:
        raise ValueError(f"{info.path} has {len(data)} bytes, {info.bytes} were announced")
    found = checksum(data)
    if found != info.checksum:
        raise ValueError(f"{info.path} has checksum {found}, {info.checksum} was announced")
    return load(data)


def _restore_tie(model: torch.nn.Module) -> None:
    """Give a head tied to the embedding the new weights.

    No tensor is loaded for such a head, so a layer-wise reload leaves it as it was: what a CPU build has
    packed for its matrix product would stay that of the old weights.
    """
    head = getattr(model, "lm_head", None)
    if head is None or not getattr(model.config, "tie_word_embeddings", False):
        return
    for embedding in (one for one in model.modules() if type(one) is VocabParallelEmbedding):
        if head is not embedding:
            head.weight = embedding.weight
            head.quant_method.process_weights_after_loading(head)
        return
