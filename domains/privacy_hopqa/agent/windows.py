"""Long documents in overlapping windows: cutting, scoring against a query, choosing which to read.

Pure; the candidate pool calls it for every remembered or retrieved document. Private documents are cut like
public ones, so that text beyond the first window can be reached at all.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from domains.privacy_hopqa.scorer.rules import STOPWORDS
from retrieval_server.tokens import fold, tokens

_QUERY_TERM = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Window:
    """Characters `start` to `end` of a document; `index` is 1-based."""

    id: str
    index: int
    start: int
    end: int
    text: str


@dataclass(slots=True)
class RankedWindow:
    """One window that could be read, with its best rank, score and match over all findings."""

    window: Window
    rank: int = 1 << 30
    score: float = float("-inf")
    match: int = 0
    queries: dict[str, None] = field(default_factory=dict)

    def merge(self, rank: int, hit_score: float, match: int, query: str) -> None:
        """Take in another finding: the score of the document, ties between its windows broken by match."""
        self.rank = min(self.rank, rank)
        self.score = max(self.score, hit_score + match / 1000)
        self.match = max(self.match, match)
        if query:
            self.queries[query] = None


def spans(length: int, size: int, overlap: int) -> list[tuple[int, int]]:
    """`(start, end)` of windows of `size` characters that advance by `size - overlap`; at least one."""
    if not 0 <= overlap < size:
        raise ValueError(f"overlap {overlap} with window {size}; allowed: 0 <= overlap < window")
    found = [(0, min(size, length))]
    while found[-1][1] < length:
        start = found[-1][0] + size - overlap
        found.append((start, min(start + size, length)))
    return found


def split(doc_id: str, text: str, window: int = 10_000, overlap: int = 1_000) -> list[Window]:
    """The windows of a document, ids `<doc>#w01of03`; a local document of one window keeps its bare id."""
    cuts = spans(len(text), window, overlap)
    if len(cuts) == 1 and doc_id.startswith("local/"):
        return [Window(doc_id, 1, 0, len(text), text)]
    return [
        Window(f"{doc_id}#w{index:02d}of{len(cuts):02d}", index, start, end, text[start:end])
        for index, (start, end) in enumerate(cuts, start=1)
    ]


def query_terms(query: str) -> frozenset[str]:
    """Distinct terms of a query that count for matching; beyond ASCII the words that the search looks up."""
    terms = _QUERY_TERM.findall(query.lower()) if query.isascii() else tokens(query)
    least = 3 if query.isascii() else 2  # pairs of characters are words of scripts without spaces
    return frozenset(term for term in terms if len(term) >= least and term not in STOPWORDS)


def match_scores(
    text: str, windows: Sequence[Window], query: str, chunk: int = 4_000, chunk_overlap: int = 800
) -> list[int]:
    """Per window, the most query terms that one chunk overlapping it contains."""
    terms = query_terms(query)
    as_in_terms = str.lower if query.isascii() else fold
    chunks = []
    for start, end in spans(len(text), chunk, chunk_overlap):
        folded = as_in_terms(text[start:end])
        chunks.append((start, end, sum(term in folded for term in terms)))
    return [
        max((count for start, end, count in chunks if start < window.end and window.start < end), default=0)
        for window in windows
    ]


def select(
    candidates: Sequence[RankedWindow], top: int = 4, neighbours: int = 1, max_read: int = 0
) -> list[RankedWindow]:
    """The windows of a large document to read, in document order.

    The `top` windows by match, rank, score and index, each with `neighbours` on both sides. `max_read` > 0
    caps the result; the best windows stay before their neighbours.
    """
    by_index = {candidate.window.index: candidate for candidate in candidates}
    ordered = sorted(candidates, key=lambda c: (-c.match, c.rank, -c.score, c.window.index))
    best = [candidate.window.index for candidate in ordered[:top]]
    beside = [i + step for i in best for step in range(-neighbours, neighbours + 1) if i + step in by_index]
    chosen = list(dict.fromkeys(best + beside))
    return [by_index[index] for index in sorted(chosen[:max_read] if max_read else chosen)]
