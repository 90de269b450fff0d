"""Windows and the candidate pool: cutting, matching a query, merging findings, choosing what to read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.privacy_hopqa.agent.interfaces import Hit
from domains.privacy_hopqa.agent.pool import Pool, RankedHit, build_pool, make_cards, windows_to_read
from domains.privacy_hopqa.agent.windows import RankedWindow, Window, match_scores, query_terms, select, split
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from tests.support.privacy_hopqa.agent import document


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (10_000, [(0, 10_000)]),
        (10_001, [(0, 10_000), (9_000, 10_001)]),
        (25_000, [(0, 10_000), (9_000, 19_000), (18_000, 25_000)]),
        (32_296, [(0, 10_000), (9_000, 19_000), (18_000, 28_000), (27_000, 32_296)]),
    ],
)
def test_lengths(length: int, expected: list[tuple[int, int]]) -> None:
    assert [(window.start, window.end) for window in split("web/1", "x" * length)] == expected


def test_ids() -> None:
    assert [window.id for window in split("web/7", "x" * 20_000)] == [
        "web/7#w01of03",
        "web/7#w02of03",
        "web/7#w03of03",
    ]
    assert split("web/7", "short")[0].id == "web/7#w01of01"
    assert split("local/DR1/f/a.md", "short")[0].id == "local/DR1/f/a.md"


@given(st.text(max_size=200), st.integers(1, 30), st.integers(0, 29))
def test_windows_cover_the_text(text: str, window: int, overlap: int) -> None:
    if overlap >= window:
        with pytest.raises(ValueError, match="overlap"):
            split("web/1", text, window, overlap)
        return
    found = split("web/1", text, window, overlap)
    joined = found[0].text + "".join(part.text[overlap:] for part in found[1:])
    assert joined == text
    assert all(len(part.text) <= window for part in found)


def test_match_counts_the_best_overlapping_chunk() -> None:
    text = "cold chain " + "x" * 89 + "audit " + "y" * 194
    windows = split("web/1", text, window=100, overlap=0)
    scores = match_scores(text, windows, "the cold-free chain audit of 2023", chunk=100, chunk_overlap=0)
    assert query_terms("The cold cold of a chain_x") == {"cold", "chain_x"}
    assert scores == [1, 1, 0]
    assert match_scores(text, windows[1:2], "audit", 100, 0) == [1]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("東京支社の売上高は増加した。", "売上高の増加"),
        ("Чистая ВЫРУЧКА Ёлки", "выручка елки"),
        ("Crédit Élan", "crédit elan"),
    ],
)
def test_windows_match_in_other_scripts(text: str, query: str) -> None:
    windows = split("web/1", "x" * 100 + text, window=100, overlap=0)
    before, matching = match_scores("x" * 100 + text, windows, query, chunk=100, chunk_overlap=0)
    assert before == 0 and matching >= 2


def test_of_several_findings_the_best_rank_score_and_match_count() -> None:
    candidate = ranked(1)
    candidate.merge(2, 2.5, 4, "q1")
    candidate.merge(1, 1.0, 0, "q2")
    assert (candidate.rank, candidate.match, list(candidate.queries)) == (1, 4, ["q1", "q2"])
    assert candidate.score == pytest.approx(2.504)


def ranked(index: int, match: int = 0, rank: int = 1 << 30, score: float = float("-inf")) -> RankedWindow:
    return RankedWindow(Window(f"web/1#w{index}", index, 0, 0, ""), rank, score, match)


def chosen(candidates: list[RankedWindow], **options: int) -> list[int]:
    return [candidate.window.index for candidate in select(candidates, **options)]


def test_large_documents_are_read_around_their_best_windows() -> None:
    matches = [0, 5, 4, 0, 0, 0, 3, 2, 0, 0, 0, 0]
    windows = [ranked(index, match) for index, match in enumerate(matches, start=1)]
    assert chosen(windows) == [1, 2, 3, 4, 6, 7, 8, 9]
    assert chosen(windows, max_read=3) == [2, 3, 7]
    assert chosen(windows, top=1, neighbours=0) == [2]


def test_ties_go_to_rank_then_score_then_index() -> None:
    windows = [ranked(1, 1, 2, 9.0), ranked(2, 1, 1, 1.0), ranked(3, 1, 1, 2.0)]
    assert chosen(windows, top=1, neighbours=0) == [3]
    assert chosen(windows[:2], top=1, neighbours=0) == [2]


def long_document(windows, hot, size=100):
    """A web document of so many windows without overlap; those in `hot` hold that many query terms."""
    words = ["alpha", "bravo", "charlie", "delta", "echo"]
    parts = [" ".join(words[: hot.get(i, 0)]).ljust(size, ".") for i in range(windows)]
    return document("web/1", "".join(parts), "t")


def windows_config(**changes):
    sizes = {"reader_window_chars": 100, "retrieval_chunk_chars": 100}
    overlaps = {"reader_window_overlap_chars": 0, "retrieval_chunk_overlap_chars": 0}
    return PrivacyHopQASettings(**(sizes | overlaps | changes))


def pool_of(doc, config, read=frozenset(), query="alpha bravo charlie delta echo") -> Pool:
    return build_pool([], [RankedHit(Hit(doc, 5.0), 1, query)], set(read), query, config)


def test_a_small_document_is_read_whole_and_read_windows_stay_out():
    doc = long_document(5, {3: 2})
    pool = pool_of(doc, windows_config(), read={"web/1#w02of05"})
    assert [c.window.index for c in windows_to_read(pool.parents[0], windows_config())] == [1, 3, 4, 5]
    assert (pool.windows_before_cut, pool.parents_before_cut) == (4, 1)


def test_pool_merges_by_window_and_orders_by_rank_score_and_id():
    config = windows_config(max_candidate_cards=3)
    docs = {name: document(f"web/{name}", "x") for name in "abcd"}
    hits = [
        RankedHit(Hit(docs["a"], 1.0), 2, "q1"),
        RankedHit(Hit(docs["b"], 9.0), 1, "q1"),
        RankedHit(Hit(docs["a"], 2.0), 1, "q2"),
        RankedHit(Hit(docs["c"], 2.0), 1, "q3"),
        RankedHit(Hit(docs["d"], 9.0), 2, "q3"),
    ]
    pool = build_pool([document("local/T/m.md", "x")], hits, set(), "q", config)
    assert [p.doc_id for p in pool.parents] == ["local/T/m.md", "web/b", "web/a"]
    assert pool.parents_before_cut == 5
    cards = make_cards(pool.parents, 500)
    assert cards[2].top_queries == ("q1", "q2")
    assert (cards[2].best_rank, cards[2].best_score) == (1, 2.0)
    assert cards[0].in_memory
