"""`weights.transport=file`: one safetensors file for each version, which engines read by its path.

For any engine that sees the same file system: the embedded one, and one that shares its GPU with the trainer,
where NCCL cannot connect them.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelinerl.base import guard
from pipelinerl.base.files import write_whole
from pipelinerl.config.tree import Config
from pipelinerl.engines.wire import (
    COPIES,
    OF_A_RUN,
    SHARED_MEMORY,
    PermanentUpdateError,
    checksum,
    read_mark,
    weights_directory,
)
from pipelinerl.weights.transports.base import Member, NamedTensor, StagedUpdate, Transport, TransportError
from pipelinerl.weights.transports.kind import TransportKind, weights_ahead

if TYPE_CHECKING:
    import torch

VERSIONS_KEPT = 2
GUARD_END_S = 15.0


class FileTransport(Transport):
    """Writes each version to `directory`, in `dtype`; null is float32."""

    def __init__(self, directory: Path, dtype: torch.dtype | None = None, ahead: bool = False) -> None:
        """`ahead`: the engines are vLLM with this package's back-end and read while they generate."""
        import torch  # not above: the launcher asks `FILE` without it

        self.directory, self.dtype, self.ahead = directory, dtype or torch.float32, ahead
        self._written: list[Path] = []
        # Of each engine that reads ahead, by its URL.
        self._ranks: dict[str, int] = {}
        # Nobody else is left to free memory when the launcher and its guard are killed together.
        self._guard = guard.start([directory]) if SHARED_MEMORY in directory.parents else None

    def init_info(self, members: Sequence[Member]) -> list[dict[str, Any]]:
        """The name under which an engine says what it has read ahead.

        Raises PermanentUpdateError for an engine that cannot.
        """
        if not self.ahead:
            return [{} for _ in members]
        for one in members:
            if one.version is None:
                raise PermanentUpdateError(f"{one.url} is no vLLM; weights.ahead needs vLLM, set it to false")
        self._ranks |= {one.url: one.ranks for one in members}
        return [{"reader": _reader(one.url)} for one in members]

    def stage(self, version: int, named_tensors: Iterable[NamedTensor]) -> StagedUpdate:
        """Write the version's file, and remove that of the version before the last.

        Raises PermanentUpdateError for a folder without room.
        """
        from safetensors.torch import save

        tensors = {
            name: tensor.detach().to(device="cpu", dtype=self.dtype).contiguous()
            for name, tensor in named_tensors
        }
        data = save(tensors)
        path = self.directory / f"weights-{version:08d}.safetensors"
        # With its marks: a version that is published again has to be read again.
        _remove(path)
        try:
            write_whole(path, data)
        except OSError as error:
            raise PermanentUpdateError(
                f"{self.directory} does not take a version of {len(data) / 2**30:.3g} GiB ({error}); set "
                f"weights.directory to a folder with room for {COPIES} of them"
            ) from error
        self._written = [*(one for one in self._written if one != path), path]
        # The one before stays: an engine that hung may still be reading it.
        while len(self._written) > VERSIONS_KEPT:
            _remove(self._written.pop(0))
        info = {"path": str(path), "version": str(version), "bytes": len(data), "checksum": checksum(data)}
        layout = {name: (tuple(one.shape), str(one.dtype)) for name, one in tensors.items()}
        return StagedUpdate(info, len(data), layout)

    def arrived(self, staged: StagedUpdate, url: str) -> bool:
        """Whether every rank of the engine has said so; TransportError with what one says instead."""
        path = Path(staged.info["path"])
        for rank in range(self._ranks[url]):
            mark = read_mark(path, _reader(url), rank)
            if not mark.exists():
                return False
            if said := mark.read_text(encoding="utf-8"):
                raise TransportError(said)
        return True

    def close(self) -> None:
        """Remove what was written, and the folder if it was made for this run alone."""
        while self._written:
            _remove(self._written.pop())
        if self.directory.name.startswith(OF_A_RUN):
            shutil.rmtree(self.directory, ignore_errors=True)
        if self._guard is not None:
            with suppress(subprocess.TimeoutExpired):  # somebody stopped it; there is nothing left to remove
                self._guard.communicate(timeout=GUARD_END_S)


class File(TransportKind):
    """Needs a folder that the engines see as well."""

    name = "file"
    ignores: Mapping[str, str] = {"world.actor_group_port": "weights travel through files"}

    def host_bytes(self, cfg: Config, version: float, readers: int) -> float:
        kept = COPIES if cfg.weights.directory is None else 0  # in shared memory
        # Its tensors and its bytes while it is written, and what each engine that receives ahead has read.
        return version * (kept + 2 + readers)

    def sender(self, cfg: Config, elements: int, dtype: torch.dtype, device: torch.device) -> FileTransport:
        configured = Path(cfg.weights.directory) if cfg.weights.directory else None
        output_dir, size = Path(str(cfg.output_dir)), elements * dtype.itemsize
        directory = weights_directory(output_dir, size, configured, shared=cfg.several_hosts)
        return FileTransport(directory, dtype, weights_ahead(cfg))


FILE = File()


def _reader(url: str) -> str:
    """A name for an engine that can be part of a file's name."""
    return "".join(letter if letter.isalnum() else "-" for letter in url.split("//")[-1])


def _remove(path: Path) -> None:
    """The file of a version, its marks, and either of them half written."""
    for one in (*path.parent.glob(f"{path.name}*"), *path.parent.glob(f"~{path.name}*")):
        one.unlink(missing_ok=True)
