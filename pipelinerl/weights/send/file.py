"""The file transport: safetensors written beside, then renamed; engines read it by path."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from pipelinerl.weights.send.base import Member, NamedTensor, StagedUpdate, TransportError
from pipelinerl.weights.send.directory import SHARED_MEMORY
from pipelinerl.weights.wire import checksum, read_mark, write_whole

VERSIONS_KEPT = 2


class FileTransport:
    """Writes each version to `directory`, in `dtype`; works for any engine that sees the same file system."""

    collective = False

    def __init__(self, directory: Path, dtype: torch.dtype = torch.float32, ahead: bool = False) -> None:
        """`ahead`: the engines are vLLM with this package's back-end and read while they generate."""
        self.directory = directory
        self.dtype = dtype
        self.ahead = ahead
        self._written: list[Path] = []
        self._ranks: dict[str, int] = {}
        """Of each engine that reads ahead, by its URL."""

    def init_info(self, members: Sequence[Member]) -> list[dict[str, Any]]:
        """Nothing to agree on, but for the name under which an engine says what it has read ahead.

        Raises TransportError for an engine that cannot.
        """
        if not self.ahead:
            return [{} for _ in members]
        for one in members:
            if one.version is None:
                raise TransportError(f"{one.url} is no vLLM; weights.ahead needs vLLM, set it to false")
        self._ranks |= {one.url: one.ranks for one in members}
        return [{"reader": _reader(one.url)} for one in members]

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
        _remove(path)  # a version that is published again has to be read again
        write_whole(path, data)
        self._keep(path)
        info = {"path": str(path), "version": str(version), "bytes": len(data), "checksum": checksum(data)}
        layout = {name: (tuple(one.shape), str(one.dtype)) for name, one in tensors.items()}
        return StagedUpdate(info, len(data), layout)

    def send(self, staged: StagedUpdate, deadline_s: float) -> None:
        """The engines read the file themselves."""

    def arrived(self, staged: StagedUpdate, url: str) -> bool:
        """Whether every rank of the engine has said so; TransportError with what one says instead."""
        path = Path(staged.info["path"])
        marks = [read_mark(path, _reader(url), rank) for rank in range(self._ranks[url])]
        for mark in marks:
            if not mark.exists():
                return False
            if said := mark.read_text(encoding="utf-8"):
                raise TransportError(said)
        return True

    def abort(self) -> None:
        """Nothing here ever waits."""

    def close(self) -> None:
        """Remove what was written, and the folder if it lies in shared memory."""
        for path in self._written:
            _remove(path)
        self._written.clear()
        if self.directory.parent == SHARED_MEMORY:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _keep(self, path: Path) -> None:
        if path in self._written:
            self._written.remove(path)
        self._written.append(path)
        while len(self._written) > VERSIONS_KEPT:
            _remove(self._written.pop(0))


def _reader(url: str) -> str:
    """A name for an engine that can be part of a file's name."""
    return "".join(letter if letter.isalnum() else "-" for letter in url.split("//")[-1])


def _remove(path: Path) -> None:
    for one in (path, *path.parent.glob(f"{path.name}.read-*")):
        one.unlink(missing_ok=True)
