"""Intervals of benchmarks: over problems that seeds share, and over seeds."""

import numpy as np
import pytest

from benchmarks._by_metric import table_of
from benchmarks._intervals import paired, ratio_of_means, t_interval


def test_a_problem_that_all_seeds_were_asked_counts_once() -> None:
    after = [float(value) for value in np.random.default_rng(0).integers(0, 2, 60)]
    one, three = (paired([[0.0] * 60] * seeds, [after] * seeds)[2] for seeds in (1, 3))
    assert one == three and three.n == 60
    assert paired([[0.0] * 60] * 3, [after] * 3, own_problems=True)[2].n == 180
    rows = [{"values": {"success": ([0.0] * 60, after)}} for _ in range(3)]
    assert table_of(rows)["success"]["difference"] == one._asdict()


def test_a_problem_takes_the_seeds_that_have_both_values() -> None:
    before, after, change = paired(
        [[0.0, None, 1.0, None], [0.0, 1.0, 0.0, 1.0]], [[1.0, 1.0, None, None], [0.0, 0.0, 1.0, None]]
    )
    assert (before.n, before.mean) == (3, pytest.approx((0.0 + 1.0 + 0.0) / 3))
    assert after.mean == pytest.approx((0.5 + 0.0 + 1.0) / 3)
    assert change.mean == pytest.approx((0.5 - 1.0 + 1.0) / 3)


def test_the_interval_of_five_seeds() -> None:
    mean, half = t_interval([50, 53, 51, 55, 52])
    assert mean == pytest.approx(52.2) and half == pytest.approx(2.4, abs=0.05)
    assert t_interval([1.0]) == (1.0, None)


def test_a_ratio_of_means_holds_the_true_one_as_often_as_it_says() -> None:
    rng, true, held = np.random.default_rng(0), 0.9, 0
    for _ in range(2000):
        below = 45 + 3 * rng.standard_normal(3)
        above = true * 45 + 2 * rng.standard_normal(3) + 0.5 * (below - 45)
        _, low, high = ratio_of_means(list(above), list(below))
        held += low is not None and high is not None and low <= true <= high
    assert held / 2000 == pytest.approx(0.95, abs=0.015)


def test_a_ratio_of_means_has_no_ends_where_the_denominator_may_be_zero() -> None:
    assert ratio_of_means([1.0], [2.0]) == (0.5, None, None)
    assert ratio_of_means([1.0, 2.0, 3.0], [-4.0, 1.0, 6.0]) == (2.0, None, None)
