"""Windows: cutting, ids, matching a query, choosing what to read of a large document."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.privacy_hopqa.agent.windows import (
    Candidate,
    Window,
    match_scores,
    query_terms,
    select,
    split,
)


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


def test_of_several_findings_the_best_rank_score_and_match_count() -> None:
    candidate = ranked(1)
    candidate.merge(2, 2.5, 4, "q1")
    candidate.merge(1, 1.0, 0, "q2")
    assert (candidate.rank, candidate.match, list(candidate.queries)) == (1, 4, ["q1", "q2"])
    assert candidate.score == pytest.approx(2.504)


def ranked(index: int, match: int = 0, rank: int = 1 << 30, score: float = float("-inf")) -> Candidate:
    return Candidate(Window(f"web/1#w{index}", index, 0, 0, ""), rank, score, match)


def chosen(candidates: list[Candidate], **options: int) -> list[int]:
    return [candidate.window.index for candidate in select(candidates, **options)]


def test_large_documents_are_read_around_their_best_windows() -> None:
    matches = [0, 5, 4, 0, 0, 0, 3, 2, 0, 0, 0, 0]
    windows = [ranked(index, match) for index, match in enumerate(matches, start=1)]
    assert chosen(windows) == [1, 2, 3, 4, 6, 7, 8, 9]
    assert chosen(windows, max_read=3) == [2, 3, 7]
    assert chosen(windows, top=1, neighbours=0) == [2]
    assert chosen(windows[:5]) == [1, 2, 3, 4, 5]


def test_ties_go_to_rank_then_score_then_index() -> None:
    windows = [ranked(1, 1, 2, 9.0), ranked(2, 1, 1, 1.0), ranked(3, 1, 1, 2.0)]
    assert chosen(windows, read_all_max=1, top=1, neighbours=0) == [3]
    assert chosen(windows[:2], read_all_max=1, top=1, neighbours=0) == [2]
