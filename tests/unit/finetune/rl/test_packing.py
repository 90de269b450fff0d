"""Packing loses nothing, exceeds nothing and balances ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelinerl.finetune.rl.packing import balance, best_fit_decreasing, pack

SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=40)


@settings(max_examples=100)
@given(SIZES, st.integers(1, 4))
def test_every_text_exactly_once_within_capacity(sizes: list[int], ranks: int) -> None:
    plan = pack(sizes, 50, ranks)
    bins = [items for rank in plan for items in rank]
    assert sorted(i for items in bins for i in items) == list(range(len(sizes)))
    assert all(0 < sum(sizes[i] for i in items) <= 50 for items in bins)
    assert len(plan) == ranks
    if len(sizes) >= ranks:
        assert all(plan)


@settings(max_examples=50)
@given(SIZES)
def test_no_two_bins_could_be_merged(sizes: list[int]) -> None:
    loads = sorted(sum(sizes[i] for i in items) for items in best_fit_decreasing(sizes, 50))
    assert len(loads) < 2 or loads[0] + loads[1] > 50


def test_lognormal_lengths_fill_rows() -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(5, 0.8, 2000), 1, 4096).astype(int)
    bins = best_fit_decreasing(lengths, 4096)
    assert lengths.sum() / (len(bins) * 4096) > 0.98


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_lognormal_lengths_fill_rows_and_load_ranks_evenly(ranks: int) -> None:
    for seed in range(4):
        lengths = np.clip(np.random.default_rng(seed).lognormal(7, 1, 1024), 8, 12_000).astype(int)
        plan = pack(lengths, 12_000, ranks)
        loads = [sum(int(lengths[row].sum()) for row in rank) for rank in plan]
        assert max(loads) <= 1.02 * sum(loads) / ranks
        assert lengths.sum() / (sum(map(len, plan)) * 12_000) > 0.985
        assert sorted(i for rank in plan for row in rank for i in row) == list(range(1024))


def test_ranks_are_even_rather_than_rows_full() -> None:
    plan = pack([50] * 6, 50 * 2, ranks=2)  # three full rows cannot be shared by two ranks
    assert [sum(map(len, rank)) for rank in plan] == [3, 3]


@settings(max_examples=100)
@given(SIZES, st.integers(1, 6))
def test_the_busiest_rank_is_no_busier_than_when_texts_are_dealt_longest_first(
    sizes: list[int], ranks: int
) -> None:
    busiest = max(sum(sizes[i] for row in rank for i in row) for rank in pack(sizes, 50, ranks))
    dealt = max(sum(sizes[i] for i in part) for part in balance(sizes, ranks))
    assert busiest <= max(dealt, 1.02 * sum(sizes) / ranks)


def test_balance_is_close_to_even() -> None:
    loads = [9, 8, 7, 6, 5, 4, 3, 2, 1]
    sums = [sum(loads[i] for i in part) for part in balance(loads, 3)]
    assert max(sums) - min(sums) <= 2


def test_an_item_that_cannot_fit_is_named() -> None:
    with pytest.raises(ValueError, match=r"item 1 has length 9, allowed are 1\.\.8"):
        best_fit_decreasing([3, 9], 8)
