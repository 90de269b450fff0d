"""The two formats of a segment, records and JSON lines: encode one, read one at a position, step over one.

`read_at` and `skip_at` return None while the record at that position is not complete.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

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

# From this size on it pays to ask for the file's size before reading a record that may not be complete.
_LARGE = 1 << 20
_CHUNK = 1 << 16


class SegmentFormat(Protocol):
    suffix: str

    def encode(self, tree: Tree) -> list[Buffer]: ...

    def read_at(self, fd: int, position: int) -> tuple[Tree, int] | None:
        """The record at `position` and where it ends."""

    def skip_at(self, fd: int, position: int) -> int | None:
        """Where the record at `position` ends."""


class RecordFormat:
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


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise UnsupportedValue(f"a line of statistics cannot carry {type(value).__name__}")


class JsonLinesFormat:
    """One JSON document per line: statistics, which people read with their own tools."""

    suffix = ".jsonl"

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder(enc_hook=_plain)
        self._decoder = msgspec.json.Decoder()

    def encode(self, tree: Tree) -> list[Buffer]:
        return [self._encoder.encode(tree) + b"\n"]

    def _line(self, fd: int, position: int) -> bytes | None:
        parts: list[bytes] = []
        while part := os.pread(fd, _CHUNK, position):
            end = part.find(b"\n")
            if end >= 0:
                parts.append(part[: end + 1])
                return b"".join(parts)
            parts.append(part)
            position += len(part)
        return None

    def read_at(self, fd: int, position: int) -> tuple[Tree, int] | None:
        line = self._line(fd, position)
        if line is None:
            return None
        try:
            return self._decoder.decode(line), position + len(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptRecord(f"the line is not JSON: {error}") from error

    def skip_at(self, fd: int, position: int) -> int | None:
        line = self._line(fd, position)
        return None if line is None else position + len(line)
