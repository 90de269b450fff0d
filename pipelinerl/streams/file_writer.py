"""The writer of a partition on disk: one process, whole records, segments of bounded size."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
from collections.abc import Sequence

from pipelinerl.base import faults
from pipelinerl.streams.base import PartitionWriter
from pipelinerl.streams.errors import StreamBusy, StreamError
from pipelinerl.streams.layout import format_of, list_segments, skip_records
from pipelinerl.streams.limits import Limits
from pipelinerl.streams.positions import FOLDER, forget_marks, read_marks
from pipelinerl.streams.records import Buffer, Tree
from pipelinerl.streams.specs import SingleStreamSpec
from pipelinerl.streams.wakeup import DirectoryWatch

log = logging.getLogger(__name__)

_IOV_MAX = 512


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

    def __init__(self, spec: SingleStreamSpec, mode: str, segment_bytes: int, limits: Limits) -> None:
        self._spec, self._limits = spec, limits
        self._format = format_of(spec)
        self._segment_bytes = segment_bytes
        self._directory = spec.directory
        self._directory.mkdir(parents=True, exist_ok=True)
        self._fd = -1
        self._may_write_to = 0
        self._marks_watch: DirectoryWatch | None = None
        self._lock = self._take_lock()
        try:
            if mode == "w":
                for segment in list_segments(self._directory):
                    segment.path.unlink()
                forget_marks(self._directory)
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
            count, end = skip_records(self._format, fd, last.path)
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
        if self._limits.max_unread is not None and self._index >= self._may_write_to:
            self._wait_for_readers(self._limits.max_unread)
        if self._size >= self._segment_bytes:
            self._open(self._sequence + 1, self._index)
            self._free()
        try:
            faults.hit("streams:write")
            self._size += _write_all(self._fd, buffers)
        except OSError as error:
            raise StreamError(f"stream {self._spec} cannot be written: {error}") from error
        self._index += 1

    def _wait_for_readers(self, bound: int) -> None:
        if self._marks_watch is None:
            marks = self._directory / FOLDER
            marks.mkdir(exist_ok=True)
            self._marks_watch = DirectoryWatch(marks)
        watch = self._marks_watch

        def positions() -> dict[str, int]:
            watch.drain()
            return read_marks(self._directory)

        if read_marks(self._directory):
            slowest = self._limits.wait_for_readers(self._spec, self._index, positions, watch.wait)
            self._may_write_to = slowest + bound

    def _free(self) -> None:
        """Remove the segments that every named reader has left behind."""
        marks = read_marks(self._directory) if self._limits.trim else {}
        if marks:
            slowest = min(marks.values())
            segments = list_segments(self._directory)
            for segment, following in itertools.pairwise(segments):
                if following.first <= slowest:
                    segment.path.unlink()

    def close(self) -> None:
        if self._marks_watch is not None:
            self._marks_watch.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
