"""The file transport: safetensors written beside, then renamed; engines read it by path."""

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from pipelinerl.weights.base import Member, NamedTensor, StagedUpdate
from pipelinerl.weights.checksum import checksum
from pipelinerl.weights.directory import SHARED_MEMORY

VERSIONS_KEPT = 2


class FileTransport:
    """Writes each version to `directory`, in `dtype`; works for any engine that sees the same file system."""

    collective = False

    def __init__(self, directory: Path, dtype: torch.dtype = torch.float32) -> None:
        self.directory = directory
        self.dtype = dtype
        self._written: list[Path] = []

    def init_info(self, members: Sequence[Member]) -> list[dict[str, Any]]:
        """Nothing to agree on."""
        return [{} for _ in members]

    def join(self, deadline_s: float) -> None:
        """No rendezvous."""

    def stage(self, version: int, named_tensors: Iterable[NamedTensor]) -> StagedUpdate:
        """Write the version's file; names must be distinct parameters (no ties)."""
        with torch.no_grad():
            tensors = {
                name: tensor.detach().to(device="cpu", dtype=self.dtype).contiguous()
                for name, tensor in named_tensors
            }
        data = save(tensors)
        path = self.directory / f"weights-{version:08d}.safetensors"
        beside = path.with_suffix(".partial")
        beside.write_bytes(data)
        os.replace(beside, path)
        self._keep(path)
        info = {"path": str(path), "version": str(version), "bytes": len(data), "checksum": checksum(data)}
        layout = {name: (tuple(one.shape), str(one.dtype)) for name, one in tensors.items()}
        return StagedUpdate(info, len(data), layout)

    def send(self, staged: StagedUpdate, deadline_s: float) -> None:
        """The engines read the file themselves."""

    def abort(self) -> None:
        """Nothing here ever waits."""

    def close(self) -> None:
        """Remove what was written, and the folder if it lies in shared memory."""
        for path in self._written:
            path.unlink(missing_ok=True)
        self._written.clear()
        if self.directory.parent == SHARED_MEMORY:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _keep(self, path: Path) -> None:
        if path in self._written:
            self._written.remove(path)
        self._written.append(path)
        while len(self._written) > VERSIONS_KEPT:
            self._written.pop(0).unlink(missing_ok=True)
