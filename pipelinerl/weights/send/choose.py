"""The transport that a configuration asks for."""

from pathlib import Path

import torch

from pipelinerl.config import Config
from pipelinerl.weights.send.base import Transport
from pipelinerl.weights.send.directory import weights_directory
from pipelinerl.weights.send.file import FileTransport
from pipelinerl.weights.send.nccl import NcclTransport


def build_transport(cfg: Config, elements: int, dtype: torch.dtype, device: torch.device) -> Transport:
    """The transport of `cfg.weights`, for a model of `elements` parameters and a trainer on `device`.

    Raises ValueError for NCCL without a GPU.
    """
    weights = cfg.weights
    if weights.transport == "nccl":
        if device.type != "cuda":
            raise ValueError(
                f"weights.transport=nccl: the trainer runs on {device.type}, which has no NCCL; use file"
            )
        return NcclTransport(
            device,
            dtype,
            buffer_bytes=weights.buffer_mb * 2**20,
            buffers=weights.buffers,
            first_port=cfg.world.actor_group_port,
            ahead=cfg.weights_ahead,
        )
    configured = Path(weights.directory) if weights.directory else None
    directory = weights_directory(Path(str(cfg.output_dir)), elements * dtype.itemsize, configured)
    return FileTransport(directory, dtype, cfg.weights_ahead)
