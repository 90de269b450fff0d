"""`weights.transport=file`: one safetensors file for each version, which engines read by its path.

For any engine that sees the same file system: the embedded one, and one that shares its GPU with the trainer,
where NCCL cannot connect them.
"""

from __future__ import annotations

import errno
import logging
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pipelinerl.base import guard
from pipelinerl.base.logs import REMARK
from pipelinerl.config.tree import Config
from pipelinerl.engines.kind import engine_kind
from pipelinerl.engines.wire import (
    COPIES,
    OF_A_RUN,
    PermanentUpdateError,
    claim,
    lacks_memory,
    make_private,
    read_mark,
    weights_directory,
    write_version,
)
from pipelinerl.weights.transports.base import (
    Held,
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

log = logging.getLogger(__name__)
# In front of the data, whose names are known when all of it is there; 100 bytes a tensor.
HEADER_ROOM = 16 * 2**20
GUARD_END_S = 15.0


class FileTransport(Transport):
    """Writes each version to `directory`, in `dtype`; null is float32."""

    def __init__(
        self,
        directory: Path,
        dtype: torch.dtype | None = None,
        ahead: bool = False,
        size: int = 0,
        adapter_scale: float | None = None,
    ) -> None:
        """`ahead`: the engines are vLLM with this package's back-end and read while they generate.

        `size`: bytes of a version's tensors, where they are known, so that its memory need not grow.
        `adapter_scale`: versions are adapters alone, whose products engines multiply by it.
        """
        # Not above: the launcher asks `FILE` without torch.
        import torch

        from pipelinerl.engines.version_file import HostMemory

        self.directory, self.dtype, self.ahead = directory, dtype or torch.float32, ahead
        self.copies = ahead  # an engine that reads in its pause would be paused amid the next step
        self._announced = {} if adapter_scale is None else {"adapter_scale": adapter_scale}
        self._written: list[Path] = []
        self._memory = HostMemory()
        self._memory.reserve(HEADER_ROOM + size)
        # Of each engine that reads ahead, by its URL.
        self._ranks: dict[str, int] = {}
        # Nobody else is left to remove them when the launcher and its guard are killed together.
        self._guard = guard.start([directory]) if self._outside else None
        self._claimed: TextIO | None = None

    def init_info(self, members: Sequence[Member]) -> list[dict[str, Any]]:
        """The name under which an engine says what it has read ahead; to vLLM, whether adapters will come.

        Raises PermanentUpdateError for an engine that cannot read ahead.
        """
        infos: list[dict[str, Any]] = [
            {"adapters": True} if self._announced and one.version is not None else {} for one in members
        ]
        if not self.ahead:
            return infos
        for one in members:
            if one.version is None:
                raise PermanentUpdateError(f"{one.url} is no vLLM; weights.ahead needs vLLM, set it to false")
        self._ranks |= {one.url: one.ranks for one in members}
        return [info | {"reader": _reader(one.url)} for info, one in zip(infos, members, strict=True)]

    def stage(self, version: int, named_tensors: Iterable[NamedTensor]) -> StagedUpdate:
        """Raises PermanentUpdateError for a folder without room."""
        return self.hold(named_tensors)(version)

    def _write(self, data: memoryview, shapes: Mapping[str, tuple[int, ...]], version: int) -> StagedUpdate:
        """The version's file, in the place of the version before the last."""
        path = self.directory / f"weights-{version:08d}.safetensors"
        # The one before stays: an engine that hung may still be reading it. One that hung for longer finds
        # the new version's bytes among those of its own, which its checksum does not let pass.
        full = len(self._written) >= COPIES
        used = path if path in self._written else self._written[0] if full else None
        if used is not None:
            self._written.remove(used)
            # With its marks: a version that is published again has to be read again.
            _remove(used, but=used)
        try:
            if self._outside:
                self._keep_private()
            found = write_version(path, data, used)
        except OSError as error:
            room = f"set weights.directory to a folder with room for {COPIES} of them"
            remedy = "allow larger files (ulimit -f)" if error.errno == errno.EFBIG else room
            raise PermanentUpdateError(
                f"{self.directory} does not take a version of {len(data) / 2**30:.3g} GiB ({error}); {remedy}"
            ) from error
        self._written.append(path)
        info = {"path": str(path), "version": str(version), "bytes": len(data), "checksum": found}
        info |= self._announced
        layout = {name: (shape, str(self.dtype)) for name, shape in shapes.items()}
        return StagedUpdate(info, len(data), layout)

    def _keep_private(self) -> None:
        """Raises OSError for a folder that another user has put in the place of one that was removed.

        Cleaners remove folders, and systemd does with what a user who logs out has in shared memory.
        """
        was_there = self.directory.exists()
        make_private(self.directory)
        if not was_there:
            log.warning("%s was removed during the run and is made again", self.directory, extra=REMARK)
            self._claimed = claim(self.directory)  # the launcher's claim went with the folder

    def hold(self, named_tensors: Iterable[NamedTensor]) -> Held:
        """Copies one tensor after the other, because the caller may make each as it is asked for."""
        import torch

        from pipelinerl.engines.version_file import header

        shapes: dict[str, tuple[int, ...]] = {}
        gpus, end = set[torch.device](), HEADER_ROOM
        for name, tensor in named_tensors:
            source = tensor.detach()
            if source.is_cuda:
                # A copy that also converts would go through fresh host memory.
                source = source.to(self.dtype)
                gpus.add(source.device)
            start, end = end, end + source.numel() * self.dtype.itemsize
            place = self._memory.reserve(end)[start:end].view(self.dtype).view(source.shape)
            place.copy_(source, non_blocking=True)
            shapes[name] = tuple(source.shape)
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
        if gpus:
            self._pin(end)
        first = header(shapes, self.dtype)
        if len(first) > HEADER_ROOM:
            raise PermanentUpdateError(
                f"the names of {len(shapes)} tensors take {len(first)} bytes, weight files have "
                f"{HEADER_ROOM} for them; use weights.transport=nccl"
            )
        begin = HEADER_ROOM - len(first)
        data = memoryview(self._memory.reserve(end).numpy())
        data[begin:HEADER_ROOM] = first
        return partial(self._write, data[begin:], shapes)

    def _pin(self, size: int) -> None:
        try:
            self._memory.pin(size)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            log.warning("weights are copied from the GPU through pageable memory, which is slower: %s", error)

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

    def sent_tensors(self, staged: StagedUpdate) -> Mapping[str, torch.Tensor]:
        from pipelinerl.engines.version_file import HostMemory, read_tensors

        info = staged.info
        # Checked once more: a file that was damaged since would accuse the engine.
        return read_tensors(Path(info["path"]), info["bytes"], info["checksum"], HostMemory())

    @property
    def _outside(self) -> bool:
        """Whether the folder was made for this run alone, and does not lie in the run's own."""
        return self.directory.name.startswith(OF_A_RUN)

    def close(self) -> None:
        """Remove what was written, and the folder if it was made for this run alone."""
        while self._written:
            _remove(self._written.pop())
        self._memory.release()
        if self._claimed is not None:
            self._claimed.close()
        if self._outside:
            shutil.rmtree(self.directory, ignore_errors=True)
        if self._guard is not None:
            with suppress(subprocess.TimeoutExpired):  # somebody stopped it; there is nothing left to remove
                self._guard.communicate(timeout=GUARD_END_S)


class File(TransportKind):
    """Needs a folder that the engines see as well."""

    name = "file"
    ahead = True
    ignores: Mapping[str, str] = {"world.actor_group_port": "weights travel through files"}

    def remedies(self, cfg: Config) -> Iterator[str]:
        if cfg.trainer_on_gpu and not cfg.world.share_device and "nccl" in engine_kind(cfg).transports:
            alone = ", engine.per_card=1" if cfg.engine.per_card > 1 else ""
            yield f"weights.transport=nccl{alone}"
        yield from super().remedies(cfg)

    def host_bytes(self, cfg: Config, version: float, readers: int) -> float:
        kept = COPIES if cfg.weights.directory is None else 0  # in shared memory
        # The sender's lasting memory, and what each engine that receives ahead has read.
        return version * (kept + 1 + readers)

    def sender(self, cfg: Config, elements: int, dtype: torch.dtype, device: torch.device) -> FileTransport:
        import torch

        # Adapters in float32 whatever the engine computes with: it rounds their sum with its weights, once.
        scale = cfg.finetune.lora.scale if adapters_alone(cfg) else None
        dtype = dtype if scale is None else torch.float32
        configured = Path(cfg.weights.directory) if cfg.weights.directory else None
        output_dir, size = Path(str(cfg.output_dir)), elements * dtype.itemsize
        directory = weights_directory(output_dir, size, configured, shared=cfg.several_hosts)
        return FileTransport(directory, dtype, weights_ahead(cfg), size, scale)


FILE = File()


def _reader(url: str) -> str:
    """A name for an engine that can be part of a file's name."""
    return "".join(letter if letter.isalnum() else "-" for letter in url.split("//")[-1])


def _remove(path: Path, but: Path | None = None) -> None:
    """The file of a version, its marks, and either of them half written; all but one."""
    for one in (*path.parent.glob(f"{path.name}*"), *path.parent.glob(f"~{path.name}*")):
        if one != but:
            one.unlink(missing_ok=True)
