"""Files of lines that several processes append to and that survive a killed writer or a power cut.

Roles and domains write them (`LineFile`); launcher, report and resumed roles read them (`LineTail`,
`read_lines`). What such an end leaves is one incomplete last line: it is left out and counted. Any other line
that is not what its reader expects is damage, and refused with file and line (`DamagedLine`).
"""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from pipelinerl.base.closing import Closing
from pipelinerl.base.errors import first_line
from pipelinerl.base.files import naming

log = logging.getLogger(__name__)
T = TypeVar("T")

CUT = b"\x18\n"
"""Ends a line that its writer did not complete. JSON escapes control characters, so no whole line ends so."""


class DamagedLine(ValueError):
    """A complete line that is not what was written, with its file, its number and what to do."""


class LineFile(Closing):
    """Appends whole lines; the incomplete line of a predecessor is marked as such first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        # Marked and not cut off: another process may have appended since this look at the size.
        self._cut = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def append(self, line: bytes) -> None:
        """Write `line` and its end. Raises OSError that names the file, such as on a full disk."""
        data = (CUT if self._cut else b"") + line + b"\n"
        with naming(self.path):
            written = os.write(self._fd, data)
        self._cut = written != len(data)
        if self._cut:
            raise OSError(f"{self.path}: only {written} of {len(data)} bytes could be written")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LineTail:
    """Follows a file of lines that others append to; one that does not exist yet is empty."""

    def __init__(self, path: Path, *, offset: int = 0, from_end: bool = False) -> None:
        """Begins at byte `offset`; `from_end`: leaves out what is there already."""
        self._path = path
        self.offset = path.stat().st_size if from_end and path.exists() else offset
        """Where the next line begins."""
        self._cut = 0
        self._unfinished = False

    @property
    def dropped(self) -> int:
        """Incomplete lines that were left out, with the last one as long as it has no end."""
        return self._cut + self._unfinished

    def news(self) -> Iterator[bytes]:
        """Whole lines, with their ends, since the last call; one line is held at a time."""
        self._unfinished = False
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):  # it is still being written, or its writer was killed
                    self._unfinished = True
                    return
                self.offset += len(line)
                if line.endswith(CUT):
                    self._cut += 1
                else:
                    yield line

    def records(
        self, decode: Callable[[bytes], T], on_damage: Callable[[str], None] | None = None
    ) -> Iterator[T]:
        """The new lines decoded; `decode` raises ValueError or msgspec's DecodeError for what is none.

        Raises DamagedLine for such a line; given `on_damage`, tells it the same and goes on behind the line.
        """
        for line in self.news():
            try:
                record = decode(line)
            except (ValueError, RecursionError, msgspec.DecodeError) as error:
                damaged = DamagedLine(
                    f"{self._path}:{self._line_number()}: {first_line(error)}; "
                    "the line is damaged: put the file back, or delete the line to go on without it"
                )
                if on_damage is None:
                    raise damaged from None
                on_damage(str(damaged))
                continue
            yield record

    def _line_number(self) -> int:
        """Of the line that was read last, from 1."""
        with self._path.open("rb") as file:
            return file.read(self.offset).count(b"\n")


def read_lines(path: Path, decode: Callable[[bytes], T]) -> list[T]:
    """Every record of a file that may not exist; incomplete lines are left out and said once.

    `decode` and DamagedLine: see `LineTail.records`.
    """
    tail = LineTail(path)
    found = list(tail.records(decode))
    if tail.dropped:
        log.warning("%s: %d incomplete lines left out (a writer was killed)", path, tail.dropped)
    return found
