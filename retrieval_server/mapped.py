"""The back end for large corpora: a `bm25s` index whose arrays stay in files and are mapped into memory.

Any number of processes can serve one index; the machine's page cache holds it once.
"""

import bisect
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
from numpy.typing import NDArray

from retrieval_server.manifest import Manifest
from retrieval_server.ranking import best
from retrieval_server.tokens import query_terms


class MappedTerms(Sequence[bytes]):
    """The vocabulary in order of the terms' bytes."""

    def __init__(self, folder: Path) -> None:
        self._ends = map_array(folder / "term_ends.npy")
        self._numbers = map_array(folder / "term_ids.npy")
        with (folder / "terms.bin").open("rb") as file:
            empty = len(self._ends) == 0  # an empty file cannot be mapped
            self._text = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, place: int) -> bytes:  # type: ignore[override]  # slices are not needed
        return self._text[int(self._ends[place - 1]) if place else 0 : int(self._ends[place])]

    def number(self, term: bytes) -> int | None:
        """The term's number in the index, None if no document holds it."""
        place = bisect.bisect_left(self, term)
        if place == len(self) or self[place] != term:
            return None
        return int(self._numbers[place])


class MappedIndex:
    """A finished index folder. Raises `IndexMismatch` when it does not belong to this corpus or program."""

    backend = "bm25s"

    def __init__(self, folder: Path, corpus: Path) -> None:
        self.manifest = Manifest.read(folder)
        self.manifest.check(folder, corpus)
        self._terms = MappedTerms(folder)
        self.ranks = map_array(folder / "id_ranks.npy")
        stored = bm25s.BM25.load(folder, mmap=True, load_vocab=False, show_progress=False).scores
        self._impacts, self._docs, self._indptr = (
            np.asarray(stored[name]) for name in ("data", "indices", "indptr")
        )
        self._dense = map_array(folder / "dense.npy")
        terms = map_array(folder / "dense_terms.npy").tolist()
        self._dense_rows: dict[int | None, int] = {term: row for row, term in enumerate(terms)}
        self.offsets = map_array(folder / "offsets.npy")
        self.sizes = map_array(folder / "sizes.npy")

    def __len__(self) -> int:
        return self.manifest.documents

    def get_scores(self, query: str) -> NDArray[np.float64]:
        """Scores `[N]`; terms are added in the order of the query, each once."""
        scores = np.zeros(len(self))
        for term in query_terms(query):
            number = self._terms.number(term.encode())
            if number in self._dense_rows:
                scores += self._dense[self._dense_rows[number]]
            elif number is not None:
                span = slice(self._indptr[number], self._indptr[number + 1])
                np.add.at(scores, self._docs[span], self._impacts[span])  # as bm25s does for its own queries
        return scores

    def search(self, query: str, k: int, threshold: float = 0.0) -> list[tuple[int, float]]:
        """As `Ranker.search` says; positions are those of the corpus's rows with text."""
        return best(self.get_scores(query), self.ranks, k, threshold)


def map_array(path: Path) -> Any:
    """An array in a file, without the cost of `numpy.memmap`'s own class."""
    return np.asarray(np.load(path, mmap_mode="r"))
