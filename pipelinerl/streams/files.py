"""Streams on a file system: segments of bounded size, one writer, many readers that are woken, not polling.

A partition is a folder of segments `<sequence>-<first record number>.rec` (`.jsonl` for statistics). A
segment is final as soon as its successor exists. A writer that finds an incomplete record at the end (its
predecessor was killed while writing) starts a new segment, so that bytes once written never change under a
reader; a reader waits for an incomplete record until the successor shows that it will never be completed, and
then reports and skips it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pipelinerl.streams.base import PartitionWriter, StreamReader
from pipelinerl.streams.errors import CorruptRecord, StreamBusy, StreamError
from pipelinerl.streams.records import Buffer, Tree
from pipelinerl.streams.segments import JsonLinesFormat, RecordFormat, SegmentFormat
from pipelinerl.streams.specs import SingleStreamSpec, is_stats_topic
from pipelinerl.streams.wakeup import DirectoryWatch

log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
_NAME = re.compile(r"^(\d{6,})-(\d{12,})\.(rec|jsonl)$")
_IOV_MAX = 512


class Segment(NamedTuple):
    sequence: int
    first: int
    path: Path


def list_segments(directory: Path) -> list[Segment]:
    """The segments of a partition in order; empty if the folder does not exist."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    found = [(match, name) for name in names if (match := _NAME.match(name))]
    return sorted(Segment(int(m[1]), int(m[2]), directory / name) for m, name in found)


def _format_of(spec: SingleStreamSpec) -> SegmentFormat:
    return JsonLinesFormat() if is_stats_topic(spec.topic) else RecordFormat()


def _skip_records(fmt: SegmentFormat, fd: int, path: Path, limit: int | None = None) -> tuple[int, int]:
    """Complete records of a segment, at most `limit`, and where the last one ends; CorruptRecord names it."""
    count = end = 0
    try:
        while count != limit and (after := fmt.skip_at(fd, end)) is not None:
            count, end = count + 1, after
    except CorruptRecord as error:
        raise CorruptRecord(f"record {count} of {path} is corrupt ({error})") from error
    return count, end


def _write_all(fd: int, buffers: Sequence[Buffer]) -> int:
    """Write every byte, also when the kernel takes only a part of them; returns how many there were."""
    total = 0
    pending = [memoryview(b).cast("B") for b in buffers]
    while pending:
        written = os.writev(fd, pending[:_IOV_MAX])
        total += written
        while pending and written >= len(pending[0]):
            written -= len(pending.pop(0))
        if written:
            pending[0] = pending[0][written:]
    return total


class FileWriter(PartitionWriter):
    """Appends to the last segment and opens the next one when it is full."""

    def __init__(self, spec: SingleStreamSpec, mode: str, segment_bytes: int) -> None:
        self._spec = spec
        self._format = _format_of(spec)
        self._segment_bytes = segment_bytes
        self._directory = spec.directory
        self._directory.mkdir(parents=True, exist_ok=True)
        self._fd = -1
        self._lock = self._take_lock()
        try:
            if mode == "w":
                for segment in list_segments(self._directory):
                    segment.path.unlink()
            self._continue()
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> int:
        lock = os.open(self._directory / "writer.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise StreamBusy(
                f"stream {self._spec} already has a writer; a partition takes one, close the other or use "
                "another partition"
            ) from None
        return lock

    def _continue(self) -> None:
        """Go on behind the last complete record; a torn one is left alone in its segment."""
        segments = list_segments(self._directory)
        if not segments:
            self._open(sequence=0, first=0)
            return
        last = segments[-1]
        fd = os.open(last.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            count, end = _skip_records(self._format, fd, last.path)
            torn = os.fstat(fd).st_size - end
        finally:
            os.close(fd)
        self._index = last.first + count
        if torn:
            log.warning("stream %s ended in an incomplete record of %d bytes; left out", self._spec, torn)
            self._open(last.sequence + 1, self._index)
        else:
            self._sequence, self._size = last.sequence, end
            self._fd = os.open(last.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _open(self, sequence: int, first: int) -> None:
        path = self._directory / f"{sequence:06d}-{first:012d}{self._format.suffix}"
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._sequence, self._index, self._size = fd, sequence, first, 0

    def append(self, tree: Tree) -> None:
        if self._fd < 0:
            raise StreamError(f"stream {self._spec} is closed")
        buffers = self._format.encode(tree)
        if self._size >= self._segment_bytes:
            self._open(self._sequence + 1, self._index)
        try:
            self._size += _write_all(self._fd, buffers)
        except OSError as error:
            raise StreamError(f"stream {self._spec} cannot be written: {error}") from error
        self._index += 1

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class FileReader(StreamReader):
    """Follows the segments of one partition. `torn_records` counts records that were never completed."""

    def __init__(self, spec: SingleStreamSpec, offset: int, use_inotify: bool | None) -> None:
        self.spec = spec
        self.position = 0
        self.torn_records = 0
        self._format = _format_of(spec)
        self._directory = spec.directory
        self._segment: Segment | None = None
        self._fd = -1
        self._at = 0
        if not self._directory.is_dir():
            self._directory.mkdir(parents=True, exist_ok=True)
        self._watch = DirectoryWatch(self._directory, use_inotify)
        if offset:
            self._seek(offset)

    def _seek(self, offset: int) -> None:
        candidates = [s for s in list_segments(self._directory) if s.first <= offset]
        if candidates:
            segment = candidates[-1]
            self._enter(segment)
            count, self._at = _skip_records(self._format, self._fd, segment.path, offset - segment.first)
            self.position += count
        if self.position != offset:
            raise StreamError(
                f"record {offset} of stream {self.spec} does not exist, it holds {self.position} records"
            )

    def _enter(self, segment: Segment) -> None:
        fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._segment, self._at, self.position = fd, segment, 0, segment.first

    def next_record(self) -> tuple[Tree] | None:
        record = self._read_here()
        if record is None:
            # What is written from here on wakes the wait that follows, so nothing falls between the two.
            self._watch.drain()
            record = self._read_here()
            while record is None and self._advance():
                record = self._read_here()
        return record

    def _read_here(self) -> tuple[Tree] | None:
        if self._fd < 0:
            return None
        try:
            found = self._format.read_at(self._fd, self._at)
        except CorruptRecord as error:
            name = self._segment.path if self._segment else self._directory
            raise CorruptRecord(
                f"record {self.position} of stream {self.spec} is corrupt ({error}); {name}, byte {self._at}"
            ) from error
        if found is None:
            return None
        tree, self._at = found
        self.position += 1
        self._watch.found()
        return (tree,)

    def _advance(self) -> bool:
        """Go to the next segment if there is one; the current segment is final then."""
        after = -1 if self._segment is None else self._segment.sequence
        later = [s for s in list_segments(self._directory) if s.sequence > after]
        if not later:
            self._check_not_replaced()
            return False
        if self._segment is not None:
            # The writer may have completed a record here between our look and its opening of the successor.
            if self._format.skip_at(self._fd, self._at) is not None:
                return True
            if torn := self.tail_bytes:
                self.torn_records += 1
                log.warning(
                    "record %d of stream %s was never completed (%d bytes); skipped",
                    self.position,
                    self.spec,
                    torn,
                )
        self._enter(later[0])
        return True

    def _check_not_replaced(self) -> None:
        if self._fd >= 0 and os.fstat(self._fd).st_nlink == 0:
            raise StreamError(f"stream {self.spec} was started over while it was read; open it again")

    @property
    def tail_bytes(self) -> int:
        """Bytes of an incomplete record at the reader's position."""
        if self._fd < 0 or self._format.skip_at(self._fd, self._at) is not None:
            return 0
        return os.fstat(self._fd).st_size - self._at

    def describe_end(self) -> str:
        if self._segment is None:
            return "no writer has opened it"
        if torn := self.tail_bytes:
            return f"it ends in an incomplete record of {torn} bytes after {self.position} complete ones"
        return f"it holds {self.position} records"

    def wait(self, timeout_s: float) -> None:
        self._watch.wait(timeout_s)

    async def wait_async(self, timeout_s: float) -> None:
        await self._watch.wait_async(timeout_s)

    def fileno(self) -> int | None:
        return self._watch.fileno()

    def close(self) -> None:
        self._watch.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class FilesBackend:
    """`segment_bytes`: size from which a new segment is begun. `use_inotify`: None decides by file system."""

    def __init__(self, segment_bytes: int = SEGMENT_BYTES, use_inotify: bool | None = None) -> None:
        if segment_bytes < 1:
            raise ValueError(f"segment_bytes must be at least 1, not {segment_bytes}")
        self._segment_bytes = segment_bytes
        self._use_inotify = use_inotify

    def open_writer(self, spec: SingleStreamSpec, mode: str) -> FileWriter:
        return FileWriter(spec, mode, self._segment_bytes)

    def open_reader(self, spec: SingleStreamSpec, offset: int) -> FileReader:
        return FileReader(spec, offset, self._use_inotify)
