"""Intervals of benchmarks: over problems that seeds share, and over seeds."""

import numpy as np
import pytest

from benchmarks._by_metric import table_of
from benchmarks._runs import paired, paired_by_problem
from benchmarks._seeds import ratio_of_means, t_interval
from benchmarks.gpu.privacy_language import start_of
from benchmarks.sharing import differences


def test_a_problem_that_all_seeds_were_asked_counts_once() -> None:
    after = [float(value) for value in np.random.default_rng(0).integers(0, 2, 60)]
    one, three = (paired_by_problem([[0.0] * 60] * seeds, [after] * seeds)[2] for seeds in (1, 3))
    assert one == three and three.n == 60
    assert three == paired([({"x": [0.0] * 60}, {"x": list(after)})], "x")[2]
    rows = [{"values": {"success": ([0.0] * 60, after)}} for _ in range(3)]
    assert table_of(rows)["success"]["difference"] == one._asdict()


def test_a_problem_takes_the_seeds_that_have_both_values() -> None:
    before, after, change = paired_by_problem(
        [[0.0, None, 1.0, None], [0.0, 1.0, 0.0, 1.0]], [[1.0, 1.0, None, None], [0.0, 0.0, 1.0, None]]
    )
    assert (before.n, before.mean) == (3, pytest.approx((0.0 + 1.0 + 0.0) / 3))
    assert after.mean == pytest.approx((0.5 + 0.0 + 1.0) / 3)
    assert change.mean == pytest.approx((0.5 - 1.0 + 1.0) / 3)


def test_the_start_of_several_arms_is_one_model_asked_the_same_chains() -> None:
    chains = [1.0, 0.0, 1.0, 0.0, 0.0]
    one = {"outcome_0": {"evaluations": [[0, {"success": chains}]]}}
    arms = {f"{arm}_0": one["outcome_0"] for arm in ("outcome", "penalty")}
    assert start_of(arms) == start_of(one) and start_of(one)["success"].n == 5
    seeds = {
        **one,
        "outcome_1": {"evaluations": [[0, {"success": [None, 1.0]}]]},
        "adversary": {"seconds": 1},
    }
    assert start_of(seeds)["success"].n == 6
    assert start_of({"outcome_0": {"evaluations": [[256, {"success": chains}]]}}) == {}


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


def test_arms_that_share_their_chains_are_compared_over_seeds() -> None:
    rows = [
        {"arm": arm, "seed": seed, "leak_after": 0.3 + seed / 100 + (0.1 if arm == "shared" else 0.0)}
        for arm in ("shared", "nothing")
        for seed in range(3)
    ]
    assert [one.value for one in differences(rows, "leak")] == pytest.approx([0.1] * 3)
    assert len(differences(rows[:1] + rows[3:4], "leak")) == 1
