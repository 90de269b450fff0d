"""The transport that a configuration asks for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pipelinerl.weights.send.base import Transport
from pipelinerl.weights.send.directory import weights_directory
from pipelinerl.weights.send.file import FileTransport
from pipelinerl.weights.send.nccl import NcclTransport


def build_transport(
    options: Mapping[str, Any], output_dir: Path, elements: int, dtype: torch.dtype, device: torch.device
) -> Transport:
    """`options` are the keys of `weights` and `group_port`; `elements` counts the parameters of the model.

    Raises ValueError for NCCL without a GPU.
    """
    if options["transport"] == "nccl":
        if device.type != "cuda":
            raise ValueError(
                f"weights.transport=nccl: the trainer runs on {device.type}, which has no NCCL; use file"
            )
        return NcclTransport(
            device,
            dtype,
            buffer_bytes=options["buffer_mb"] * 2**20,
            buffers=options["buffers"],
            first_port=options["group_port"],
            ahead=options["ahead"],
        )
    configured = Path(options["directory"]) if options["directory"] else None
    return FileTransport(
        weights_directory(output_dir, elements * dtype.itemsize, configured), dtype, options["ahead"]
    )
