"""How a partition lies on disk: segments in order, and the records in one of them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from pipelinerl.streams.errors import CorruptRecord
from pipelinerl.streams.segments import JsonLinesFormat, RecordFormat, SegmentFormat
from pipelinerl.streams.specs import SingleStreamSpec, is_stats_topic

_NAME = re.compile(r"^(\d{6,})-(\d{12,})\.(rec|jsonl)$")


class Segment(NamedTuple):
    sequence: int
    first: int
    """Number of its first record."""
    path: Path


def list_segments(directory: Path) -> list[Segment]:
    """The segments of a partition in order; empty if the folder does not exist."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    found = [(match, name) for name in names if (match := _NAME.match(name))]
    return sorted(Segment(int(m[1]), int(m[2]), directory / name) for m, name in found)


def format_of(spec: SingleStreamSpec) -> SegmentFormat:
    return JsonLinesFormat() if is_stats_topic(spec.topic) else RecordFormat()


def skip_records(fmt: SegmentFormat, fd: int, path: Path, limit: int | None = None) -> tuple[int, int]:
    """Complete records of a segment, at most `limit`, and where the last one ends; CorruptRecord names it."""
    count = end = 0
    try:
        while count != limit and (after := fmt.skip_at(fd, end)) is not None:
            count, end = count + 1, after
    except CorruptRecord as error:
        raise CorruptRecord(f"record {count} of {path} is corrupt ({error})") from error
    return count, end
