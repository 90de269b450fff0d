"""How a partition lies on disk: segments in order, in one of two formats, records or JSON lines.

A segment is named `<sequence>-<first record number>.rec`, `.jsonl` for statistics. `read_at` and `skip_at`
return None while the record at that position is not complete.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from pipelinerl.streams.errors import CorruptRecord, UnsupportedValue
from pipelinerl.streams.records import (
    HEADER_SIZE,
    Buffer,
    Header,
    RecordEncoder,
    Tree,
    check_start,
    parse_header,
    record_decoder,
)
from pipelinerl.streams.specs import SingleStreamSpec, is_stats_topic

_NAME = re.compile(r"^(\d{6,})-(\d{12,})\.(rec|jsonl)$")
# From this size on it pays to ask for the file's size before reading a record that may not be complete.
_LARGE = 1 << 20
_CHUNK = 1 << 16


class Segment(NamedTuple):
    sequence: int
    first: int
    """Number of its first record."""
    path: Path


def list_segments(directory: Path, after: int = -1) -> list[Segment]:
    """The segments of a partition behind sequence number `after`; empty if the folder does not exist."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    found = [Segment(int(m[1]), int(m[2]), directory / m[0]) for m in map(_NAME.match, names) if m]
    return sorted(segment for segment in found if segment.sequence > after)


class SegmentFormat(ABC):
    suffix: ClassVar[str]

    @abstractmethod
    def encode(self, tree: Tree) -> list[Buffer]: ...

    @abstractmethod
    def read_at(self, fd: int, position: int) -> tuple[Tree, int] | None:
        """The record at `position` and where it ends."""

    @abstractmethod
    def skip_at(self, fd: int, position: int) -> int | None:
        """Where the record at `position` ends."""

    def ends(self, fd: int, position: int) -> Iterator[int]:
        """Where each complete record from `position` on ends."""
        while (after := self.skip_at(fd, position)) is not None:
            yield (position := after)


class RecordFormat(SegmentFormat):
    """Binary records, see records.py."""

    suffix = ".rec"

    def __init__(self) -> None:
        self._encoder = RecordEncoder()
        self._decode = record_decoder()

    def encode(self, tree: Tree) -> list[Buffer]:
        return self._encoder.encode(tree)

    def _header(self, fd: int, position: int) -> Header | None:
        data = os.pread(fd, HEADER_SIZE, position)
        if len(data) == HEADER_SIZE:
            return parse_header(data)
        check_start(data)
        return None

    def read_at(self, fd: int, position: int) -> tuple[Tree, int] | None:
        header = self._header(fd, position)
        if header is None:
            return None
        start, length = position + HEADER_SIZE, header[0]
        if length > _LARGE and os.fstat(fd).st_size < start + length:
            return None
        # Uninitialised memory: a bytearray would be filled with zeros first.
        payload = np.empty(length, np.uint8).data
        filled = 0
        while filled < length:
            count = os.preadv(fd, [payload[filled:]], start + filled)
            if count == 0:
                return None
            filled += count
        return self._decode(header, payload), start + length

    def skip_at(self, fd: int, position: int) -> int | None:
        header = self._header(fd, position)
        if header is None:
            return None
        end = position + HEADER_SIZE + header[0]
        return end if os.fstat(fd).st_size >= end else None


def plain(value: Any) -> Any:
    """An array or one of its numbers as JSON can say it; UnsupportedValue for anything else."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise UnsupportedValue(f"a line of JSON cannot carry {type(value).__name__}")


class JsonLinesFormat(SegmentFormat):
    """One JSON document per line: statistics, which people read with their own tools."""

    suffix = ".jsonl"

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder(enc_hook=plain)

    def encode(self, tree: Tree) -> list[Buffer]:
        return [self._encoder.encode(tree) + b"\n"]

    def _line(self, fd: int, position: int) -> bytes:
        """The line with its end; empty while it has none."""
        line = b""
        while part := os.pread(fd, _CHUNK, position + len(line)):
            head, end, _ = part.partition(b"\n")
            line += head + end
            if end:
                return line
        return b""

    def read_at(self, fd: int, position: int) -> tuple[Tree, int] | None:
        line = self._line(fd, position)
        if not line:
            return None
        try:
            return msgspec.json.decode(line), position + len(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptRecord(f"the line is not JSON: {error}") from error

    def skip_at(self, fd: int, position: int) -> int | None:
        return position + len(line) if (line := self._line(fd, position)) else None


def format_of(spec: SingleStreamSpec) -> SegmentFormat:
    return JsonLinesFormat() if is_stats_topic(spec.topic) else RecordFormat()


def skip_records(form: SegmentFormat, fd: int, path: Path, limit: int | None = None) -> tuple[int, int]:
    """Complete records of a segment, at most `limit`, and where the last one ends; CorruptRecord names it."""
    count = end = 0
    try:
        for count, end in enumerate(islice(form.ends(fd, 0), limit), 1):  # noqa: B007
            continue
    except CorruptRecord as error:
        raise CorruptRecord(f"record {count} of {path} is corrupt ({error})") from error
    return count, end
