"""Where the named readers of a partition stand: `<partition>/readers/<name>`, one number each.

A position counts the records that its reader has done with; it survives the reader, so that nothing is freed
that a reader which is started again has not seen. Readers on disk move their marks, writers look at them
(`PartitionWriter`); in redis a hash takes the place of this folder.
"""

import os
from pathlib import Path

from pipelinerl.streams.specs import check_plain

FOLDER = "readers"
_DIGITS = 20


class ReaderMark:
    """The mark of one reader. `move` writes 20 digits in place, which no other process sees half done."""

    def __init__(self, partition: Path, name: str, position: int) -> None:
        check_plain("reader", name)
        folder = partition / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self.position = -1
        beside = folder / f"~{name}"
        self._fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.move(position)
        os.replace(beside, folder / name)

    def move(self, position: int) -> None:
        if position != self.position:
            os.pwrite(self._fd, b"%0*d" % (_DIGITS, position), 0)
            self.position = position

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_marks(partition: Path) -> dict[str, int]:
    """Positions by reader; empty where nobody reads under a name."""
    folder = partition / FOLDER
    try:
        names = [name for name in os.listdir(folder) if not name.startswith("~")]
    except FileNotFoundError:
        return {}
    return {name: int((folder / name).read_bytes()) for name in names}


def forget_marks(partition: Path) -> None:
    """The stream is started over: what readers had done with was another one."""
    for name in read_marks(partition):
        (partition / FOLDER / name).unlink()
