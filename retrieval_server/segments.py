"""First pass of an index build: the corpus as segments of postings, each of bounded size.

A segment is a folder that appears under its name only when complete, so a build that was killed goes on
behind the last one. It holds, beside its counts (`segment.json`):

    terms i32[T], starts i64[T+1]      its distinct terms in ascending order, and where their postings begin
    docs i32[P], occurrences i32[P]    postings by term, then document
    lengths i32[N]                     tokens of each of its documents
    offsets i64[N], sizes i64[N]       where the document's row lies in the corpus
    docids.json, new_terms.bin         ids of its documents and of rows without text; terms that it saw first
"""

import json
import shutil
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrieval_server.manifest import sync_folder
from retrieval_server.tokens import count_tokens
from retrieval_server.webfile import Line, scan

POSTINGS_AT_A_TIME = 6_000_000  # about 300 MB while they are sorted
_ARRAYS = ("terms", "starts", "docs", "occurrences", "lengths", "offsets", "sizes")
_LOW_32 = np.int64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Counts:
    """How far a segment reaches: totals since the beginning of the corpus."""

    end_offset: int = 0
    lines: int = 0
    documents: int = 0
    skipped_empty: int = 0
    terms: int = 0


class Vocabulary(dict[bytes, int]):
    """Numbers of terms; a new one gets the next number."""

    def __missing__(self, term: bytes) -> int:
        self[term] = number = len(self)
        return number


@dataclass(frozen=True, slots=True)
class Segment:
    """A complete segment on disk; arrays are read when asked for."""

    folder: Path
    counts: Counts

    def array(self, name: str) -> NDArray[np.integer]:
        """One of the arrays, mapped into memory."""
        return np.load(self.folder / f"{name}.npy", mmap_mode="r")

    @property
    def postings(self) -> int:
        return int(self.array("starts")[-1])

    def docids(self) -> tuple[list[str], list[str]]:
        """Ids of the documents, and of the rows without text."""
        found = json.loads((self.folder / "docids.json").read_bytes())
        return found["documents"], found["empty"]

    @property
    def new_terms(self) -> list[bytes]:
        return (self.folder / "new_terms.bin").read_bytes().split()


class SegmentBuffer:
    """Postings of the segment under construction."""

    def __init__(self, before: Counts) -> None:
        self.before = before
        self._lines = before.lines
        self._end_offset = before.end_offset
        self._docids: dict[str, list[str]] = {"documents": [], "empty": []}
        self._terms, self._occurrences = array("i"), array("i")
        self._distinct, self._lengths, self._offsets, self._sizes = (
            array("i"),
            array("i"),
            array("q"),
            array("q"),
        )

    @property
    def postings(self) -> int:
        return len(self._terms)

    @property
    def is_empty(self) -> bool:
        """Whether no row was added."""
        return not any(self._docids.values())

    def add(self, line: Line, vocabulary: Vocabulary) -> None:
        """Count the row's tokens; a row without text only has its id kept."""
        self._lines, self._end_offset = line.number, line.offset + line.size
        self._docids["empty" if line.is_empty else "documents"].append(line.document.docid)
        if line.is_empty:
            return
        counts = count_tokens(line.document.text)
        self._terms.extend(map(vocabulary.__getitem__, counts))
        self._occurrences.extend(counts.values())
        self._distinct.append(len(counts))
        self._lengths.append(counts.total())
        self._offsets.append(line.offset)
        self._sizes.append(line.size)

    def write(self, folder: Path, vocabulary: Vocabulary) -> Segment:
        """Sort by term, write, and give the folder its name last."""
        counts = Counts(
            end_offset=self._end_offset,
            lines=self._lines,
            documents=self.before.documents + len(self._lengths),
            skipped_empty=self.before.skipped_empty + len(self._docids["empty"]),
            terms=len(vocabulary),
        )
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for name, values in zip(_ARRAYS, self._sorted()):
            np.save(unfinished / f"{name}.npy", values)
        (unfinished / "docids.json").write_text(json.dumps(self._docids), encoding="utf-8")
        new_terms = islice(vocabulary, self.before.terms, None)
        (unfinished / "new_terms.bin").write_bytes(b"\n".join(new_terms))
        (unfinished / "segment.json").write_text(json.dumps(asdict(counts)), encoding="utf-8")
        sync_folder(unfinished)
        unfinished.rename(folder)
        return Segment(folder, counts)

    def _sorted(self) -> tuple[NDArray[np.integer], ...]:
        """The arrays in the order of `_ARRAYS`."""
        terms = np.array(self._terms, dtype=np.int32)
        keys = np.sort((terms.astype(np.int64) << 32) | np.arange(len(terms)))
        order = keys & _LOW_32
        distinct, counts = np.unique((keys >> 32).astype(np.int32), return_counts=True)
        del keys
        first = self.before.documents
        docs = np.repeat(np.arange(first, first + len(self._distinct), dtype=np.int32), self._distinct)
        return (
            distinct,
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            docs[order],
            np.array(self._occurrences, dtype=np.int32)[order],
            np.array(self._lengths, dtype=np.int32),
            np.array(self._offsets, dtype=np.int64),
            np.array(self._sizes, dtype=np.int64),
        )


def finished_segments(folder: Path) -> list[Segment]:
    """Complete segments in order; the counts of each go on where the one before ends."""
    found = sorted(path for path in folder.glob("segment-*") if path.suffix != ".unfinished")
    return [Segment(path, Counts(**json.loads((path / "segment.json").read_bytes()))) for path in found]


def make_segments(
    web: Path,
    folder: Path,
    progress: Callable[[int], None],
    segment_postings: int = POSTINGS_AT_A_TIME,
) -> tuple[list[Segment], Vocabulary]:
    """All segments of a corpus in `folder`, going on behind those that are there; and the terms' numbers.

    `progress` is told the byte position reached. Raises `CorpusError` for a broken row.
    """
    segments = finished_segments(folder)
    vocabulary = Vocabulary()
    for segment in segments:
        for term in segment.new_terms:
            vocabulary[term]  # looking a term up numbers it
    done = segments[-1].counts if segments else Counts()
    seen = {docid for segment in segments for docids in segment.docids() for docid in docids}
    buffer = SegmentBuffer(done)
    for line in scan(web, seen, done.end_offset, done.lines, progress):
        buffer.add(line, vocabulary)
        if buffer.postings >= segment_postings:
            segments.append(buffer.write(_name(folder, len(segments)), vocabulary))
            buffer = SegmentBuffer(segments[-1].counts)
    if not buffer.is_empty:
        segments.append(buffer.write(_name(folder, len(segments)), vocabulary))
    return segments, vocabulary


def _name(folder: Path, number: int) -> Path:
    return folder / f"segment-{number:06d}"
