"""The writer of a partition on disk: one process, whole records, segments of bounded size.

Made by the backend of `files.py` for `write_to_streams`. A lock on a file of the partition keeps a second
writer out, and goes with its process.
"""

import fcntl
import itertools
import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack

from pipelinerl.base import faults
from pipelinerl.streams.base import FlowControl, PartitionWriter
from pipelinerl.streams.errors import StreamError
from pipelinerl.streams.positions import FOLDER, forget_marks, read_marks
from pipelinerl.streams.records import Buffer, Tree
from pipelinerl.streams.segments import format_of, list_segments, skip_records
from pipelinerl.streams.specs import SingleStreamSpec
from pipelinerl.streams.wakeup import DirectoryWatch, wait_any

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

    def __init__(self, spec: SingleStreamSpec, mode: str, segment_bytes: int, flow: FlowControl) -> None:
        super().__init__(spec, flow)
        self._format = format_of(spec)
        self._segment_bytes = segment_bytes
        self._directory = spec.directory
        self._directory.mkdir(parents=True, exist_ok=True)
        self._fd = -1
        self._torn = False
        """Whether the segment may end in half a record, of a write that failed."""
        self._marks: DirectoryWatch | None = None
        with ExitStack() as held:
            held.callback(os.close, self._take_lock())
            held.callback(self._close_segment)
            if mode == "w":
                for segment in list_segments(self._directory):
                    segment.path.unlink()
                forget_marks(self._directory)
            self._continue()
            self._held = held.pop_all()

    def _take_lock(self) -> int:
        lock = os.open(self._directory / "writer.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise self._busy() from None
        return lock

    def _continue(self) -> None:
        """Go on behind the last complete record; a torn one is left alone in its segment."""
        segments = list_segments(self._directory)
        if not segments:
            self._open(sequence=0, first=0)
            return
        last = segments[-1]
        self._fd = os.open(last.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        count, self._size = skip_records(self._format, self._fd, last.path)
        self._sequence, self._index = last.sequence, last.first + count
        if torn := os.fstat(self._fd).st_size - self._size:
            # Bytes once written never change under a reader, so the torn record is not cut off.
            log.warning("stream %s ended in an incomplete record of %d bytes; left out", self._spec, torn)
            self._open(last.sequence + 1, self._index)

    def _open(self, sequence: int, first: int) -> None:
        path = self._directory / f"{sequence:06d}-{first:012d}{self._format.suffix}"
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._close_segment()
        self._fd, self._sequence, self._index, self._size, self._torn = fd, sequence, first, 0, False

    def _close_segment(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _encode(self, tree: Tree) -> list[Buffer]:
        if self._fd < 0:
            raise StreamError(f"stream {self._spec} is closed")
        return self._format.encode(tree)

    def _put(self, buffers: list[Buffer]) -> None:
        try:
            if self._torn or self._size >= self._segment_bytes:
                # Behind half a record nobody would find the next one.
                self._open(self._sequence + 1, self._index)
                self._trim()
            faults.hit("streams:write")
            self._size += _write_all(self._fd, buffers)
        except OSError as error:
            self._torn = True
            raise StreamError(f"stream {self._spec} cannot be written: {error}") from error

    def _positions(self) -> dict[str, int]:
        return read_marks(self._directory)

    def _pause(self, remaining_s: float) -> None:
        if self._marks is None:
            # The caller looks once more now, because a move before this watch began is told by nobody.
            self._marks = DirectoryWatch(self._directory / FOLDER)
            self._held.callback(self._marks.close)
            return
        wait_any([self._marks], remaining_s)
        self._marks.drain()

    def _free_before(self, index: int) -> None:
        """By whole segments."""
        for segment, following in itertools.pairwise(list_segments(self._directory)):
            if following.first <= index:
                segment.path.unlink()

    def close(self) -> None:
        self._held.close()
