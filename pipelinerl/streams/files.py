"""Streams on a file system: segments of bounded size, one writer, many readers that are woken, not polling.

A partition is a folder of segments `<sequence>-<first record number>.rec` (`.jsonl` for statistics). A
segment is final as soon as its successor exists. A writer that finds an incomplete record at the end (its
predecessor was killed while writing) starts a new segment, so that bytes once written never change under a
reader; a reader waits for an incomplete record until the successor shows that it will never be completed, and
then reports and skips it.
"""

import contextlib
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from pipelinerl.streams.base import EARLIEST, FlowControl, PartitionWriter, StreamReader
from pipelinerl.streams.errors import CorruptRecord, StreamError
from pipelinerl.streams.file_writer import FileWriter
from pipelinerl.streams.positions import ReaderMark
from pipelinerl.streams.records import Tree
from pipelinerl.streams.segments import Segment, format_of, list_segments, skip_records
from pipelinerl.streams.specs import SingleStreamSpec
from pipelinerl.streams.wakeup import DirectoryWatch

log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
UPSTREAM_NAME = "0.jsonl"
"""The one file of a partition that ServiceNow's PipelineRL has written."""
_MARK_EVERY = 32


class FileReader(StreamReader):
    """Follows the segments of one partition."""

    def __init__(self, spec: SingleStreamSpec, offset: int, name: str, use_inotify: bool | None) -> None:
        self.spec = spec
        self.position = 0
        self._format = format_of(spec)
        self._directory = spec.directory
        self._segment: Segment | None = None
        self._fd = -1
        self._at = 0
        self._mark: ReaderMark | None = None
        self._directory.mkdir(parents=True, exist_ok=True)
        self._watch = DirectoryWatch(self._directory, use_inotify)
        try:
            self._seek(offset)
            if name:
                self._mark = ReaderMark(self._directory, name, self.position)
        except BaseException:
            self.close()
            raise

    def _seek(self, offset: int) -> None:
        segments = list_segments(self._directory)
        if not segments and (theirs := self._directory / UPSTREAM_NAME).is_file():
            # Without a word a reader would wait for segments that nobody writes.
            raise StreamError(f"{theirs} is upstream's and not read here; each of its lines is JSON")
        first = segments[0].first if segments else 0
        if offset == EARLIEST:
            self.position = first
        elif offset < first:
            raise self._freed(offset, first)
        elif offset and segments:
            segment = [s for s in segments if s.first <= offset][-1]
            self._enter(segment)
            count, self._at = skip_records(self._format, self._fd, segment.path, offset - segment.first)
            self.position += count
        if offset not in (EARLIEST, self.position):
            raise self._missing(offset, self.position)

    def _enter(self, segment: Segment) -> None:
        fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._segment, self._at, self.position = fd, segment, 0, segment.first

    def next_record(self) -> tuple[Tree] | None:
        if self._mark is not None and self.position - self._mark.position >= _MARK_EVERY:
            self._mark.move(self.position)
        record = self._read_here()
        if record is None:
            # Who asks for more has done with what was handed out.
            if self._mark is not None:
                self._mark.move(self.position)
            # What is written from here on wakes the wait that follows, so nothing falls between the two.
            self._watch.drain()
            record = self._read_here()
            while record is None and self._advance():
                record = self._read_here()
        return record

    def _read_here(self) -> tuple[Tree] | None:
        if self._segment is None:
            return None
        try:
            found = self._format.read_at(self._fd, self._at)
        except CorruptRecord as error:
            raise CorruptRecord(
                f"record {self.position} of stream {self.spec} is corrupt ({error}); "
                f"{self._segment.path}, byte {self._at}"
            ) from error
        if found is None:
            return None
        tree, self._at = found
        self.position += 1
        self._watch.pause.reset()
        return (tree,)

    def _later(self) -> list[Segment]:
        """The segments behind the one that is read."""
        return list_segments(self._directory, -1 if self._segment is None else self._segment.sequence)

    def _advance(self) -> bool:
        """Go to the next segment if there is one; the current segment is final then."""
        later = self._later()
        if not later:
            if self._segment is not None and os.fstat(self._fd).st_nlink == 0:
                raise self._replaced()
            return False
        if self._segment is not None:
            # The writer may have completed a record here between our look and its opening of the successor.
            if self._format.skip_at(self._fd, self._at) is not None:
                return True
            if torn := self._tail_bytes():
                log.warning(
                    "record %d of stream %s was never completed (%d bytes); skipped",
                    self.position,
                    self.spec,
                    torn,
                )
        if later[0].first > self.position:
            raise self._freed(self.position, later[0].first)
        self._enter(later[0])
        return True

    def _tail_bytes(self) -> int:
        """Bytes of an incomplete record at the reader's position."""
        if self._format.skip_at(self._fd, self._at) is not None:
            return 0
        return os.fstat(self._fd).st_size - self._at

    def unread(self) -> int:
        if later := self._later():
            # Of every segment but the last its successor says where it ends.
            with later[-1].path.open("rb") as last:
                return later[-1].first + self._count(last.fileno(), 0) - self.position
        return 0 if self._segment is None else self._count(self._fd, self._at)

    def _count(self, fd: int, at: int) -> int:
        """Complete records from byte `at` on; a corrupt one ends the count, and reading will name it."""
        count = 0
        with contextlib.suppress(CorruptRecord):
            for _ in self._format.ends(fd, at):
                count += 1
        return count

    def describe_end(self) -> str:
        if self._segment is None:
            return "no writer has opened it"
        if torn := self._tail_bytes():
            return f"it ends in an incomplete record of {torn} bytes after {self.position} complete ones"
        return f"it holds {self.position} records"

    def fileno(self) -> int | None:
        return self._watch.fileno()

    def next_pause(self) -> float:
        return self._watch.next_pause()

    def close(self) -> None:
        if self._mark is not None:
            self._mark.close()
        self._watch.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class FilesBackend:
    """Streams below `<exp_path>/streams`; `flow` is what `FlowControl` takes.

    `segment_bytes`: size from which a new segment is begun. `use_inotify`: None decides by the file system.
    """

    def __init__(
        self, segment_bytes: int = SEGMENT_BYTES, use_inotify: bool | None = None, **flow: Any
    ) -> None:
        self._segment_bytes, self._use_inotify = segment_bytes, use_inotify
        self._flow = FlowControl(**flow)

    def open_writer(self, spec: SingleStreamSpec, mode: str) -> PartitionWriter:
        """Raises StreamBusy where the partition has a writer."""
        return FileWriter(spec, mode, self._segment_bytes, self._flow)

    def open_reader(self, spec: SingleStreamSpec, offset: int, name: str) -> StreamReader:
        """Raises StreamError where the offset does not exist (any more)."""
        return FileReader(spec, offset, name, self._use_inotify)

    def partitions(self, exp_path: Path) -> list[SingleStreamSpec]:
        """Every partition that a run has, in any order."""
        root = exp_path / "streams"
        folders = [path.relative_to(root).parts for path in root.glob("*/*/*") if path.is_dir()]
        return [
            SingleStreamSpec(exp_path, topic, int(instance), int(partition))
            for topic, instance, partition in folders
            if instance.isdigit() and partition.isdigit()
        ]

    def remove(self, exp_path: Path, topic: str) -> None:
        """Forget a topic, all of its instances and partitions."""
        folder = SingleStreamSpec(exp_path, topic).directory.parent.parent
        if folder.exists():
            shutil.rmtree(folder)

    def close(self) -> None:
        """Give up what is held between streams: nothing."""
