"""Rows of samples that begin alike: nothing is lost or exceeds a row, and each token has its own past."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelinerl.finetune.rl.prefix_packing import MOST_KEYS, SortedIds, pack_prefixes
from pipelinerl.modeling.prefixes import Prefixes, distinct_pairs, shared_with_previous

ROW = 16
IDS = st.binary(min_size=1, max_size=ROW).map(
    lambda drawn: np.frombuffer(drawn, np.uint8).astype(np.int32) % 4
)
ROWS = st.lists(IDS, min_size=1, max_size=30)


def trie_size(ids: Sequence[np.ndarray]) -> int:
    """Different prefixes of the sequences: nodes of their trie."""
    children: dict[tuple[int, int], int] = {}
    for one in ids:
        node = 0
        for token in one.tolist():
            node = children.setdefault((node, token), len(children) + 1)
    return len(children)


@settings(max_examples=150)
@given(ROWS, st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_sample_exactly_once_within_a_row(ids: list[np.ndarray], ranks: int, random: object) -> None:
    learned = [random.randint(0, len(one)) for one in ids]  # type: ignore[attr-defined]
    plan = pack_prefixes(ids, learned, ROW, ranks)
    rows = [row for rank in plan for row in rank]
    assert len(plan) == ranks and all(rows)
    assert sorted(itertools.chain.from_iterable(rows)) == list(range(len(ids)))
    for row in rows:
        chosen = [ids[i] for i in row]
        assert [one.tolist() for one in chosen] == sorted(one.tolist() for one in chosen)
        computed = sum(map(len, chosen)) - int(shared_with_previous(chosen).sum())
        assert computed == trie_size(chosen) <= ROW
        assert sum(learned[i] for i in row) <= ROW
        assert sum(map(len, chosen)) <= MOST_KEYS * ROW


@settings(max_examples=100)
@given(ROWS)
def test_each_token_finds_the_tokens_before_it(ids: list[np.ndarray]) -> None:
    ordered = [ids[i] for i in SortedIds.of(ids).order]
    boundaries = np.cumsum([0, *map(len, ordered)])
    prefixes = Prefixes(boundaries, shared_with_previous(ordered))
    tokens = np.concatenate(ordered)
    places = np.concatenate([np.arange(len(one)) for one in ordered])
    assert len(prefixes.computed) == trie_size(ordered)
    np.testing.assert_array_equal(tokens[prefixes.computed][prefixes.path], tokens)
    np.testing.assert_array_equal(places[prefixes.computed][prefixes.path], places)
    paths = np.split(prefixes.path, boundaries[1:-1])
    whole = {tuple(path[: n + 1].tolist()) for path in paths for n in range(len(path))}
    assert len(whole) == len(prefixes.computed)  # one past for each token, whoever reads it
    np.testing.assert_array_equal(prefixes.new, [len(one) for one in ordered] - prefixes.shared)
    nodes = prefixes.nodes
    assert nodes[:, 0].tolist() == [0, *nodes[:-1, 1].tolist()] and nodes[-1, 1] == len(prefixes.computed)
    for begin, depth in nodes[:, [0, 3]].tolist():
        above = nodes[(nodes[:, 0] <= begin) & (nodes[:, 2] > begin)]
        assert above[:, 3].tolist() == list(range(depth + 1))
        assert (*itertools.chain.from_iterable(itertools.starmap(range, above[:, :2].tolist())),) in whole


@settings(max_examples=100)
@given(ROWS, st.randoms(use_true_random=False))
def test_what_samples_of_a_row_share_is_known_from_their_neighbours(
    ids: list[np.ndarray], random: object
) -> None:
    ordered = SortedIds.of(ids)
    count = random.randint(1, len(ids))  # type: ignore[attr-defined]
    places = np.array(sorted(random.sample(range(len(ids)), count)))  # type: ignore[attr-defined]
    row = [ids[ordered.order[place]] for place in places]
    np.testing.assert_array_equal(ordered.shared_of(places), shared_with_previous(row))


def group(prompt: int, completion: int, count: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 50_000, prompt)
    return [
        np.concatenate([first, rng.integers(0, 50_000, completion)]).astype(np.int32) for _ in range(count)
    ]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_group_lies_in_one_row_and_ranks_are_even(ranks: int) -> None:
    groups = [group(500, 100, 8, seed) for seed in range(32)]
    ids = [one for attempts in groups for one in attempts]
    mixed = np.random.default_rng(0).permutation(len(ids))
    plan = pack_prefixes([ids[i] for i in mixed], [100] * len(ids), 4096, ranks)
    assert all(mixed[i] // 8 in {mixed[j] // 8 for j in row} for rank in plan for row in rank for i in row)
    loads = [sum(trie_size([ids[mixed[i]] for i in row]) for row in rank) for rank in plan]
    assert sum(loads) == 32 * 1300  # no prompt twice
    assert max(loads) <= 1.05 * sum(loads) / ranks


def test_few_large_groups_are_divided_where_ranks_would_wait() -> None:
    ids = [*group(200, 300, 12, 0), *group(200, 30, 4, 1)]
    plan = pack_prefixes(ids, [len(one) - 200 for one in ids], 4096, 2)
    loads = [sum(trie_size([ids[i] for i in row]) for row in rank) for rank in plan]
    assert max(loads) < 1.15 * sum(loads) / 2


def test_equal_samples_fill_a_row_with_what_is_learned() -> None:
    ids = [np.full(4, 1 + i // 4, np.int32) for i in range(8)]
    assert sorted(pack_prefixes(ids, [4] * 8, ROW)[0]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert pack_prefixes(ids, [2] * 8, ROW) == [[[*range(8)]]]


def test_a_sample_longer_than_a_row_is_named() -> None:
    with pytest.raises(ValueError, match="allowed are"):
        pack_prefixes([np.arange(9, dtype=np.int32)], [3], 8)
    assert pack_prefixes([], [], 8, 2) == [[], []]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20))
def test_distinct_pairs_are_found_again(pairs: list[tuple[int, int]]) -> None:
    one, other = np.array(pairs, np.int64).reshape(-1, 2).T
    first, second, back = distinct_pairs(one, other)
    assert list(zip(first.tolist(), second.tolist())) == list(dict.fromkeys(pairs))
    np.testing.assert_array_equal(first[back], one)
    np.testing.assert_array_equal(second[back], other)
