"""The candidate pool of one iteration: windows from memory and from hits, grouped into parent documents.

Retrieval builds it, the loop makes cards of it, the settler reads from it. Pure: documents in, ranked parents
out. Ranks are 1-based places in a result list; memory has rank 0 and so comes first.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from domains.privacy_hopqa.agent.interfaces import Card, Document, Hit, WindowView
from domains.privacy_hopqa.agent.windows import RankedWindow, match_scores, query_terms, select, split
from domains.privacy_hopqa.settings import PrivacyHopQASettings

SNIPPET_BUDGET_CHARS = 4000
SNIPPET_MIN_CHARS = 16
_MAX_TOP_QUERIES = 5
_TOP_QUERY_CHARS = 100
_CARD_CHARS = 180
_SENTENCE_BREAK = re.compile(r"(?<=[.!?])\s+(?=\S)|\n+(?=\S)")


@dataclass(frozen=True, slots=True)
class RankedHit:
    """A hit with its place in the results of one query."""

    hit: Hit
    rank: int
    query: str


@dataclass(slots=True)
class Parent:
    """A document with its unread candidate windows, best first."""

    document: Document
    window_count: int
    in_memory: bool
    candidates: list[RankedWindow]
    terms: set[str] = field(default_factory=set)
    """What was looked for when the document was found."""

    @property
    def doc_id(self) -> str:
        """Canonical id of the document."""
        return self.document.doc_id


@dataclass(slots=True)
class Pool:
    """Parents after the cut, and how much there was before it."""

    parents: list[Parent]
    parents_before_cut: int
    windows_before_cut: int
    windows_after_cut: int

    def unread(self, read: set[str]) -> list[Parent]:
        """Parents that still have windows not in `read`, each with only those."""
        left = []
        for parent in self.parents:
            candidates = [c for c in parent.candidates if c.window.id not in read]
            if candidates:
                left.append(replace(parent, candidates=candidates))
        return left


def build_pool(
    memory: Sequence[Document],
    hits: Iterable[RankedHit],
    read: set[str],
    question: str,
    settings: PrivacyHopQASettings,
) -> Pool:
    """Merge memory and hits into parents; windows in `read` are left out.

    A window's score is its document's score plus a thousandth of its match count.
    """
    parents: dict[str, Parent] = {}
    for found in [*(RankedHit(Hit(document, 0.0), 0, "") for document in memory), *hits]:
        _add(parents, found, found.query or question, settings)
    kept: list[Parent] = []
    for parent in parents.values():
        parent.candidates = [c for c in parent.candidates if c.window.id not in read]
        parent.candidates.sort(key=_order)
        if limit := settings.max_windows_per_parent:
            del parent.candidates[limit:]
        if parent.candidates:
            kept.append(parent)
    kept.sort(key=lambda parent: _order(parent.candidates[0]))
    cut = kept[: settings.max_candidate_cards]
    return Pool(cut, len(kept), _count_windows(kept), _count_windows(cut))


def _order(candidate: RankedWindow) -> tuple[int, float, str]:
    return candidate.rank, -candidate.score, candidate.window.id


def _count_windows(parents: Iterable[Parent]) -> int:
    return sum(len(parent.candidates) for parent in parents)


def _add(
    parents: dict[str, Parent], found: RankedHit, match_query: str, settings: PrivacyHopQASettings
) -> None:
    """Add all windows of one document, or merge them into those already there."""
    document = found.hit.document
    windows = split(
        document.doc_id, document.text, settings.reader_window_chars, settings.reader_window_overlap_chars
    )
    matches = match_scores(
        document.text,
        windows,
        match_query,
        settings.retrieval_chunk_chars,
        settings.retrieval_chunk_overlap_chars,
    )
    parent = parents.get(document.doc_id)
    if parent is None:
        candidates = [RankedWindow(window) for window in windows]
        parent = parents[document.doc_id] = Parent(document, len(windows), found.rank == 0, candidates)
    parent.terms |= query_terms(match_query)
    for candidate, match in zip(parent.candidates, matches):
        candidate.merge(found.rank, found.hit.score, match, found.query)


def windows_to_read(parent: Parent, settings: PrivacyHopQASettings) -> list[RankedWindow]:
    """The windows of a chosen parent that are read, in document order.

    Documents of few windows are read whole; of others the best unread windows and their neighbours.
    """
    if parent.window_count <= settings.read_all_windows_max_count:
        return sorted(parent.candidates, key=lambda candidate: candidate.window.index)
    return select(
        parent.candidates,
        top=settings.large_parent_top_windows,
        neighbours=settings.large_parent_neighbor_windows,
        max_read=settings.large_parent_max_read_windows,
    )


def window_view(parent: Parent, candidate: RankedWindow) -> WindowView:
    """The window as a read call sees it."""
    document = parent.document
    return WindowView(
        window_id=candidate.window.id,
        parent_id=document.doc_id,
        source=document.source,
        title=document.title,
        locator=document.locator,
        index=candidate.window.index,
        count=parent.window_count,
        text=candidate.window.text,
    )


def make_cards(parents: Sequence[Parent], excerpt_chars: int) -> tuple[Card, ...]:
    """Cards in the order of the parents. The snippet starts at the best window's best sentence."""
    snippet_chars = min(excerpt_chars, max(SNIPPET_MIN_CHARS, SNIPPET_BUDGET_CHARS // max(1, len(parents))))
    return tuple(_card(parent, snippet_chars) for parent in parents)


def _card(parent: Parent, snippet_chars: int) -> Card:
    document, best = parent.document, parent.candidates[0]
    queries = {query: None for candidate in parent.candidates for query in candidate.queries}
    return Card(
        doc_id=document.doc_id,
        source=document.source,
        title=document.title[:_CARD_CHARS],
        locator=document.locator[:_CARD_CHARS],
        best_rank=min(candidate.rank for candidate in parent.candidates),
        best_score=max(candidate.score for candidate in parent.candidates),
        matched_window_count=len(parent.candidates),
        total_window_count=parent.window_count,
        top_queries=tuple(query[:_TOP_QUERY_CHARS] for query in list(queries)[:_MAX_TOP_QUERIES]),
        representative_window_id=best.window.id,
        snippet=best_passage(opening(best.window.text, document.title), parent.terms)[:snippet_chars],
        in_memory=parent.in_memory,
    )


def best_passage(text: str, terms: set[str]) -> str:
    """The text from the first sentence that holds most of the terms, as search results show it."""
    starts = [0, *(found.end() for found in _SENTENCE_BREAK.finditer(text))]
    ends = [*starts[1:], len(text)]
    lowered = text.lower()
    sentences = (lowered[a:b] for a, b in zip(starts, ends))
    matches = [sum(term in sentence for term in terms) for sentence in sentences]
    return text[starts[matches.index(max(matches))] :]


def opening(text: str, title: str) -> str:
    """The text from its first line that is not just the title."""
    head, newline, rest = text.lstrip().partition("\n")
    if newline and head.lstrip("# ").strip() == title:
        return rest.lstrip()
    return text.lstrip()
