"""What every stream backend offers: readers that block with a deadline, writers, and the backend registry.

A backend knows one partition at a time; ranges of partitions are put together here. `files` and `redis`
exist; another one registers itself with `register_backend` and implements `Backend`.
"""

from __future__ import annotations

import select
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from pipelinerl.base.closing import Closing
from pipelinerl.base.waits import Wait, waiting
from pipelinerl.streams.errors import StreamError
from pipelinerl.streams.records import Tree
from pipelinerl.streams.specs import SingleStreamSpec, StreamRangeSpec, StreamSpec

DEFAULT_DEADLINE_S = 3600.0
EARLIEST = -1
"""Offset of a reader that begins with the first record that has not been freed."""


def freed(spec: SingleStreamSpec, wanted: int, first: int) -> StreamError:
    """The error of a reader that comes too late."""
    return StreamError(
        f"record {wanted} of stream {spec} was freed, the first one left is {first}; read under a name to "
        "keep records, or set streams.trim=false"
    )


class StreamReader(Closing):
    """Reads one partition in order. `position` counts the records handed out: the offset to resume from.

    A reader with a name holds the records that it has not done with; asking for the next record says that it
    has done with those before.
    """

    spec: SingleStreamSpec
    position: int

    @abstractmethod
    def next_record(self) -> tuple[Tree] | None:
        """The next record in a 1-tuple, or None if none is complete yet; never blocks."""

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Block until something may have been written, at most `timeout_s` seconds."""

    @abstractmethod
    async def wait_async(self, timeout_s: float) -> None:
        """`wait` without blocking the event loop."""

    @abstractmethod
    def unread(self) -> int:
        """How many complete records lie ahead; none of them is read."""

    @abstractmethod
    def describe_end(self) -> str:
        """What lies at the end of the stream, for the message of an expired wait."""

    @abstractmethod
    def close(self) -> None: ...

    @property
    def buffered(self) -> bool:
        """Whether a record is here already, of which no descriptor will tell."""
        return False

    def fileno(self) -> int | None:
        """A descriptor that becomes readable when the stream changes; None where there is none."""
        return None

    def read(self, deadline_s: float = DEFAULT_DEADLINE_S, name: str = "") -> Iterator[Tree]:
        """Iterate for ever; each record may take `deadline_s` seconds to come, else WaitExpired(name)."""
        while True:
            record = self.next_record()
            if record is None:
                with self._wait(deadline_s, name) as wait:
                    while (record := self.next_record()) is None:
                        wait.check(self.describe_end() if wait.expired else "")
                        self.wait(wait.remaining_s)
            yield record[0]

    async def aread(self, deadline_s: float = DEFAULT_DEADLINE_S, name: str = "") -> AsyncIterator[Tree]:
        """`read` for coroutines."""
        while True:
            record = self.next_record()
            if record is None:
                with self._wait(deadline_s, name) as wait:
                    while (record := self.next_record()) is None:
                        wait.check(self.describe_end() if wait.expired else "")
                        await self.wait_async(wait.remaining_s)
            yield record[0]

    def read_available(self, max_records: int | None = None) -> list[Tree]:
        """All complete records there are now, at most `max_records`; never blocks."""
        records: list[Tree] = []
        while max_records is None or len(records) < max_records:
            record = self.next_record()
            if record is None:
                break
            records.append(record[0])
        return records

    def _wait(self, deadline_s: float, name: str) -> Wait:
        return waiting(name or f"a record of stream {self.spec}", deadline_s)


class PartitionWriter(ABC):
    """The single writer of one partition."""

    @abstractmethod
    def append(self, tree: Tree) -> None:
        """Write one record; it is visible to readers, and survives this process, when the call returns."""

    @abstractmethod
    def close(self) -> None: ...


class Backend(Protocol):
    def open_writer(self, spec: SingleStreamSpec, mode: str) -> PartitionWriter: ...

    def open_reader(self, spec: SingleStreamSpec, offset: int, name: str) -> StreamReader: ...

    def partitions(self, exp_path: Path) -> list[SingleStreamSpec]: ...

    def remove(self, exp_path: Path, topic: str) -> None: ...

    def close(self) -> None: ...


class StreamWriter(Closing):
    """Writes one stream or a range of partitions; a context manager."""

    def __init__(self, spec: StreamSpec, mode: str = "a") -> None:
        if mode not in ("a", "w"):
            raise ValueError(f"stream mode {mode!r} is not known; use 'a' (append) or 'w' (start over)")
        singles = [spec] if isinstance(spec, SingleStreamSpec) else [spec.single(p) for p in spec.partitions]
        self.spec = spec
        self._writers: dict[int, PartitionWriter] = {}
        try:
            for single in singles:
                self._writers[single.partition] = _backend().open_writer(single, mode)
        except BaseException:
            self.close()
            raise
        self._order = list(self._writers)
        self._next = 0

    def write(self, data: Tree, partition: int | None = None) -> None:
        """Append one record to `partition`, or to the next one in turn."""
        if partition is None:
            partition = self._order[self._next]
            self._next = (self._next + 1) % len(self._order)
        if partition not in self._writers:
            raise ValueError(f"partition {partition} of {self.spec} is not open; open are {self._order}")
        self._writers[partition].append(data)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


_factories: dict[str, Callable[..., Backend]] = {}
_current: list[Backend] = []


def register_backend(name: str, factory: Callable[..., Backend]) -> None:
    """Make a backend known under the name that `streams.backend` uses."""
    _factories[name] = factory


def set_streams_backend(backend: str = "files", **settings: Any) -> None:
    """Choose the backend of this process; ValueError if the name is not known."""
    if backend not in _factories:
        allowed = ", ".join(sorted(_factories))
        raise ValueError(f"streams.backend={backend} is not available; use one of: {allowed}")
    chosen = _factories[backend](**settings)
    for before in _current:
        before.close()
    _current[:] = [chosen]


def _backend() -> Backend:
    if not _current:
        set_streams_backend()
    return _current[0]


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
    return _backend().open_reader(spec, offset, reader)


def list_streams(exp_path: Path) -> list[SingleStreamSpec]:
    """Every partition that a run has, by topic, instance and partition."""
    return _backend().partitions(Path(exp_path))


def remove_stream(exp_path: Path, topic: str) -> None:
    """Forget all partitions of a topic; nobody may be writing it."""
    _backend().remove(Path(exp_path), topic)


_POLL_S = 0.02


def wait_any(readers: Sequence[StreamReader], timeout_s: float, wake: int | None = None) -> None:
    """Block until one of several streams may have changed, at most `timeout_s` seconds.

    `wake` is a descriptor that ends the wait when it becomes readable.
    """
    if any(getattr(reader, "buffered", False) for reader in readers):
        return
    poller = select.poll()
    if wake is not None:
        poller.register(wake, select.POLLIN)
    for reader in readers:
        descriptor = reader.fileno()
        if descriptor is None:
            time.sleep(min(timeout_s, _POLL_S))
            return
        poller.register(descriptor, select.POLLIN)
    poller.poll(timeout_s * 1000)
