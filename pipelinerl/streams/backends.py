"""The streams of this process: its backend, and how to read, write, list and remove them.

Every role calls `set_streams_backend` once, before it opens a stream; the functions here are what
`pipelinerl.streams` offers. Until then streams are files, which need no settings.
"""

import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pipelinerl.base.closing import Closing
from pipelinerl.config.variants import STREAM_BACKENDS
from pipelinerl.streams.base import StreamReader
from pipelinerl.streams.files import FilesBackend
from pipelinerl.streams.records import Tree
from pipelinerl.streams.specs import SingleStreamSpec, StreamRangeSpec, StreamSpec

_current = FilesBackend()


def set_streams_backend(backend: str = "files", **settings: Any) -> None:
    """Choose the backend of this process, `files` or `redis`; ValueError if the name is not known.

    Scripts pass the section of a run's file, as `**cfg.streams`: what another backend reads is left out.
    """
    global _current
    if backend not in STREAM_BACKENDS.places:
        allowed = ", ".join(STREAM_BACKENDS.places)
        raise ValueError(f"streams.backend={backend} is not available; use one of: {allowed}")
    chosen: FilesBackend = STREAM_BACKENDS.find(backend).make(**settings)
    _current.close()  # once the new one is there: a server that cannot be reached leaves the old one in use
    _current = chosen


class StreamWriter(Closing):
    """Writes one stream or a range of partitions; a context manager."""

    def __init__(self, spec: StreamSpec, mode: str = "a") -> None:
        if mode not in ("a", "w"):
            raise ValueError(f"stream mode {mode!r} is not known; use 'a' (append) or 'w' (start over)")
        singles = [spec] if isinstance(spec, SingleStreamSpec) else [spec.single(p) for p in spec.partitions]
        self.spec = spec
        with ExitStack() as held:  # where one partition has a writer already, the others are closed again
            self._writers = {
                single.partition: held.enter_context(_current.open_writer(single, mode)) for single in singles
            }
            self._held = held.pop_all()
        self._turns = itertools.cycle(self._writers)

    def write(self, data: Tree, partition: int | None = None) -> None:
        """Append one record to `partition`, or to the next one in turn."""
        if partition is None:
            partition = next(self._turns)
        if partition not in self._writers:
            raise ValueError(f"partition {partition} of {self.spec} is not open; open: {[*self._writers]}")
        self._writers[partition].append(data)

    def close(self) -> None:
        self._held.close()


def write_to_streams(spec: StreamSpec, mode: str = "a") -> StreamWriter:
    """Open a stream or a range for writing: 'a' goes on behind what is there, 'w' starts over."""
    return StreamWriter(spec, mode)


def read_stream(spec: SingleStreamSpec, offset: int = 0, reader: str = "") -> StreamReader:
    """Open one partition for reading, from record number `offset` on (EARLIEST: what is there).

    With `reader` the writer knows this reader by name: it keeps what the reader has not done with, and does
    not run further ahead than `streams.max_unread` records. StreamError where the offset does not exist.
    """
    if isinstance(spec, StreamRangeSpec):
        raise ValueError(f"{spec.topic} is a range of partitions; read one of them with SingleStreamSpec")
    return _current.open_reader(spec, offset, reader)


def list_streams(exp_path: Path) -> list[SingleStreamSpec]:
    """Every partition that a run has, by topic, instance and partition."""
    found = _current.partitions(Path(exp_path))
    return sorted(found, key=lambda spec: (spec.topic, spec.instance, spec.partition))


def remove_stream(exp_path: Path, topic: str) -> None:
    """Forget all partitions of a topic; nobody may be writing it."""
    _current.remove(Path(exp_path), topic)
