"""Files of JSON lines that several processes append to and that survive a process killed while writing."""

import os
from collections.abc import Iterator
from pathlib import Path

from pipelinerl.base.closing import Closing


class LineFile(Closing):
    """Appends whole lines; the half line of a killed predecessor is ended first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            self._write(b"\n")

    def append(self, line: bytes) -> None:
        """Write `line` and its end. Raises OSError that names the file, such as on a full disk."""
        self._write(line + b"\n")

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        if written != len(data):
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
        self.torn = False
        """Whether the file ended in an incomplete line at the last look."""

    def news(self) -> Iterator[bytes]:
        """Whole lines, with their ends, since the last call; one line is held at a time."""
        self.torn = False
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):  # it is still being written, or its writer was killed
                    self.torn = True
                    return
                self.offset += len(line)
                yield line
