"""What both back ends share: the formula's parameters, the interface, and which documents come first.

    idf(t)     = ln(1 + (N - df + 0.5) / (df + 0.5))
    score(q,d) = sum over distinct t of idf(t) * f * (k1 + 1) / (f + k1 * (1 - b + b * len(d) / avglen))

Scores are doubles, summed in the order of the query's terms, so that every back end gives the same bits as a
plain evaluation of the formula, ties included.
"""

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

K1 = 1.5
B = 0.75
_BLOCK = 64  # documents whose best score is looked at before any of them


class Ranker(Protocol):
    """BM25 over documents that are known by their position."""

    @property
    def backend(self) -> str:
        """Name of the back end: `rank_bm25` or `bm25s`."""

    ranks: NDArray[np.int32]
    """Place of each document in the order of the ids, `[N]`."""

    def __len__(self) -> int:
        """Number of documents."""

    def search(self, query: str, k: int, threshold: float = 0.0) -> list[tuple[int, float]]:
        """The best `k` documents as `(position, score)`: score descending, then document id ascending.

        Documents with score zero never appear, nor do those that score below `threshold`.
        """


def inverse_document_frequency(df: int, documents: int) -> float:
    """Never negative, whatever the share of documents that hold the term."""
    return math.log(1 + (documents - df + 0.5) / (df + 0.5))


def length_norms(lengths: NDArray[np.integer], average: float, k1: float, b: float) -> NDArray[np.float64]:
    """`k1 * (1 - b + b * len / avglen)` for lengths `[N]` in tokens."""
    return np.asarray(k1 * (1 - b + b * lengths / (average or 1.0)))


def impacts(
    idf: NDArray[np.float64], f: NDArray[np.integer], norms: NDArray[np.float64], k1: float
) -> NDArray[np.float64]:
    """What each posting adds to a score; all `[P]`: idf of its term, occurrences, norm of its document."""
    return np.asarray(idf * (f * (k1 + 1) / (f + norms)))


def id_ranks(doc_ids: list[str]) -> NDArray[np.int32]:
    """Place of each document in the order of the ids, `[N]`. Raises `ValueError` for repeated ids."""
    if len(set(doc_ids)) != len(doc_ids):
        raise ValueError("document ids are not unique within one index")
    ranks = np.empty(len(doc_ids), dtype=np.int32)
    ranks[sorted(range(len(doc_ids)), key=doc_ids.__getitem__)] = np.arange(len(doc_ids), dtype=np.int32)
    return ranks


def best(
    scores: NDArray[np.float64], ranks: NDArray[np.int32], k: int, threshold: float
) -> list[tuple[int, float]]:
    """The best `k` of scores `[N]`; equal scores are ordered by `ranks` `[N]`. See `Ranker.search`."""
    candidates = (
        np.flatnonzero(scores >= floor) if (floor := _floor(scores, k)) > 0 else np.flatnonzero(scores)
    )
    if threshold > 0:
        candidates = candidates[scores[candidates] >= threshold]
    order = np.lexsort((ranks[candidates], -scores[candidates]))[:k]
    return [(int(i), float(scores[i])) for i in candidates[order]]


def _floor(scores: NDArray[np.float64], k: int) -> float:
    """A score that at least `k` documents reach, as high as the best of each block tells; 0 if none is known.

    One pass for the maxima and one for the comparison are cheaper than partitioning all scores.
    """
    blocks = len(scores) // _BLOCK
    if blocks < k:
        return 0.0
    maxima = scores[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
    return float(np.partition(maxima, blocks - k)[blocks - k])
