"""What a comparison of arms concludes from their rows."""

from typing import Any

import pytest

from benchmarks._compare import Comparison, compared, figures_of, texts_to, times_fewer

CURVE = [(0, 0.2), (100, 0.4), (200, 0.8)]


def row(
    seed: int, before: list[float | None], after: list[float | None], rate: float = 1.0
) -> dict[str, Any]:
    """Of one metric; its curve is straight, with an evaluation in the middle."""
    ends = [sum(value or 0.0 for value in end) / len(end) for end in (before, after)]
    curve = [(0, ends[0]), (50, sum(ends) / 2), (100, ends[1])]
    return {"seed": seed, "values": {"x": [before, after]}, "curve": {"x": curve}, "texts_per_s": rate}


def only(rows: dict[str, list[dict[str, Any]]], **asked: Any) -> dict[str, Any]:
    (found,) = compared(rows, [Comparison(metrics=["x"], **asked)], own_problems=True).values()
    return found


def test_texts_are_interpolated_and_never_reached_is_none() -> None:
    assert texts_to(CURVE, 0.6) == pytest.approx(150) and texts_to(CURVE, 0.1) == 0
    assert texts_to(CURVE, 0.9) is None


def test_an_arm_is_faster_only_where_it_reaches_the_same_value_earlier() -> None:
    assert times_fewer([(0, 0.2), (100, 0.8), (200, 0.8)], CURVE) == pytest.approx(2.0)
    assert times_fewer([(0, 0.2), (100, 0.3), (200, 0.7)], CURVE) == 0.0
    assert (
        times_fewer([(0, 0.5), (100, 0.7), (200, 0.8)], [(0, 0.5), (100, 0.6), (200, 0.5)]) == 0.0
    )  # no gain


def test_a_share_of_the_gain_is_reached_sooner_than_the_last_value() -> None:
    never = [(0, 0.2), (100, 0.7), (200, 0.7)]
    assert times_fewer(never, CURVE) == 0.0
    gain = CURVE[-1][1] - CURVE[0][1]
    half = CURVE[0][1] + 0.5 * gain
    expected = texts_to(CURVE, half) / texts_to(never, half)  # type: ignore[operator]
    assert times_fewer(never, CURVE, 0.5) == pytest.approx(expected)


def test_tokens_count_where_texts_become_longer() -> None:
    curve = [[0, 0.0], [100, 0.5], [200, 1.0]]
    both = {"seed": 0, "values": {"m": [[0.0], [1.0]]}, "curve": {"m": curve}}
    short, long = both | {"tokens": [0, 300, 600]}, both | {"tokens": [0, 300, 1800]}
    asked = Comparison(arm="a", to="b", metrics=["m"], by="tokens")
    rows: dict[str, list[dict[str, Any]]] = {"a": [short], "b": [long]}
    found = compared(rows, [asked], False)
    assert found["a, times fewer tokens to b's m"]["mean"] == pytest.approx(3.0)


def test_how_soon_is_not_said_of_runs_without_an_evaluation_on_the_way() -> None:
    """Between start and end alone, every value would be reached on a straight line."""
    rows = {"a": [row(0, [0.0], [1.0])], "b": [row(0, [0.0], [1.0])]}
    assert compared(rows, [Comparison(arm="a", to="b", metrics=["x"], by="texts")], True)
    rows["b"][0]["curve"]["x"] = [(0, 0.0), (100, 1.0)]
    assert compared(rows, [Comparison(arm="a", to="b", metrics=["x"], by="texts")], True) == {}


def test_two_arms_are_compared_over_the_seeds_that_both_have() -> None:
    """Over all, an arm with an easier seed more would be the better one."""
    rows = {
        "penalty": [row(0, [0.0] * 4, [0.0, 0.0, 0.0, 1.0]), row(1, [0.0] * 4, [1.0] * 4)],
        "other": [row(0, [0.0] * 4, [0.0, 0.0, 1.0, 1.0])],
    }
    found = only(rows, arm="penalty", to="other")
    assert (found["by_seed"], found["n"], found["mean"]) == ([-0.25], 4, -0.25)
    assert only(rows, arm="penalty")["by_seed"] == [0.25, 1.0]
    assert (
        compared({"penalty": rows["penalty"]}, [Comparison(arm="penalty", to="other", metrics=["x"])], True)
        == {}
    )
    (alone,) = compared(rows, [Comparison(arm="penalty", to="other", by="speed")], True).values()
    assert alone["mean"] == 1.0


def test_a_difference_has_an_interval_over_problems_and_one_over_seeds() -> None:
    """Pooled over chains, one seed can carry a difference that the others do not have."""
    rows = {"a": [row(0, [0.0] * 40, [1.0] * 40), row(1, [0.0] * 40, [0.0] * 39 + [1.0])]}
    (comparison,) = asked = [Comparison(arm="a", metrics=["x"])]
    figures = {one.name: one.value for one in figures_of(compared(rows, asked, True))}
    name = f"x after, {comparison.arm} - start"
    assert figures[name] == pytest.approx(41 / 80) and figures[f"{name}, lower end"] > 0.3
    assert figures[f"{name}, over seeds, lower end"] < 0


def test_what_is_left_of_the_start_is_over_the_problems_of_all_runs() -> None:
    rows = {"a": [row(0, [1.0, 1.0], [1.0, 0.0]), row(1, [1.0, 1.0, None], [0.0, 0.0, 1.0])]}
    assert only(rows, arm="a", by="left")["mean"] == 0.25
    asked = [Comparison(arm="a", metrics=["x", "never"], by="left")]
    assert compared({"a": [row(0, [0.0], [0.0])]}, asked, True) == {}  # nothing to take off
    start, end = [1.0] * 30 + [0.0] * 70, [1.0] * 9 + [0.0] * 91
    left = only({"a": [row(0, [*start], [*end])]}, arm="a", by="left")
    # An interval that holds a third does not decide whether a goal of a third is met.
    assert left["mean"] == pytest.approx(0.3) and left["low"] < 0.2 and 1 / 3 < left["high"] < 0.5


def test_a_share_of_a_gain_needs_a_gain() -> None:
    """RARO's (54.4 - 2.0) of verifier RL's (57.7 - 2.0)."""
    rows = {
        "raro": [row(n, [0.02], [0.544]) for n in range(3)],
        "rlvr": [row(n, [0.02], [0.577]) for n in range(3)],
    }
    found = only(rows, arm="raro", to="rlvr", by="gain")
    assert found["mean"] == pytest.approx(52.4 / 55.7) and found["low"] == pytest.approx(found["mean"])
    rows["rlvr"] = [row(n, [0.02], [0.06]) for n in range(3)]
    assert compared(rows, [Comparison(arm="raro", to="rlvr", metrics=["x"], by="gain")], True) == {}
