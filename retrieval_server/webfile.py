"""The public corpus on disk: scanned once, then read by offset. Its texts are never held in memory."""

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from retrieval_server.corpus import CorpusError, WebDocument, parse_web_line


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the corpus and where it lies: line number from 1, first byte, bytes."""

    number: int
    offset: int
    size: int
    document: WebDocument

    @property
    def is_empty(self) -> bool:
        """Without text, and therefore not indexed."""
        return not self.document.text.strip()


def scan(
    path: Path,
    seen: set[str],
    offset: int = 0,
    number: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Line]:
    """The rows from byte `offset`, before which `number` lines lie; ids are added to `seen`.

    `progress` is told every byte position reached. Raises `CorpusError` naming file and line: malformed row,
    repeated id.
    """
    with path.open("rb") as lines:
        lines.seek(offset)
        for content in lines:
            number, start, offset = number + 1, offset, offset + len(content)
            if progress is not None:
                progress(offset)
            if not content.strip():
                continue
            document = parse_web_line(content, f"{path}:{number}")
            if document.docid in seen:
                raise CorpusError(f"{path}:{number}: duplicate docid {document.docid!r}; ids are unique")
            seen.add(document.docid)
            yield Line(number, start, len(content), document)


class WebFile:
    """Random access to the rows at `offsets[i]` of `sizes[i]` bytes. Threads may share one."""

    def __init__(self, path: Path, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        self.path = path
        self._offsets = offsets
        self._sizes = sizes
        self._file = path.open("rb")

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, position: int) -> WebDocument:
        """Raises `CorpusError` when the file is no longer the one that was scanned."""
        offset = int(self._offsets[position])
        line = os.pread(self._file.fileno(), int(self._sizes[position]), offset)
        return parse_web_line(line, f"{self.path}, byte {offset}")

    def close(self) -> None:
        self._file.close()


class WebScan:
    """One pass over a corpus that is small enough for postings in memory: texts out, ids and places kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.docids: list[str] = []
        self.skipped_empty = 0
        self._offsets = array("q")
        self._sizes = array("q")

    def texts(self) -> Iterator[str]:
        """Each text that is indexed, once. The other members are complete when it is exhausted."""
        for line in scan(self.path, set()):
            if line.is_empty:
                self.skipped_empty += 1
                continue
            self.docids.append(line.document.docid)
            self._offsets.append(line.offset)
            self._sizes.append(line.size)
            yield line.document.text

    def file(self) -> WebFile:
        return WebFile(self.path, self._offsets, self._sizes)
