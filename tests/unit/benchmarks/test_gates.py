"""Gates of the arms as results keep them: numbers for readers, and the same numbers in words."""

import json
from typing import Any

import pytest

from benchmarks import arms, goals
from benchmarks._figures import RESULTS
from benchmarks._gates import Change, Difference, Gate, Shares
from benchmarks.gpu.privacy_language import run_of

ALL = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
KEPT = {
    name: found["gates"]
    for name, found in ALL.items()
    if isinstance(found, dict) and isinstance(found.get("gates"), dict)
}


def of_data(kept: dict[str, Any]) -> Gate:
    """What `as_data` was given."""
    numbers = {key: value for key, value in kept.items() if key not in ("holds", "figures")}
    if "start" in numbers:
        return Gate(kept["holds"], Change(**numbers))
    if "value" in numbers:
        return Gate(kept["holds"], Difference(**numbers))
    reached = [float("inf") if one is None else one for one in numbers.pop("by_seed")]
    return Gate(kept["holds"], Shares(by_seed=reached, **numbers))


def test_a_difference_is_told_with_its_interval_and_its_seeds() -> None:
    figures = Difference(value=-0.0612, low=-0.108, high=-0.015, n=344, by_seed=[-0.0612])
    told = "-0.061 [-0.108, -0.015] n=344, by seed -0.061"
    assert Gate(False, figures).as_data() == {
        "holds": False,
        "value": -0.0612,
        "low": -0.108,
        "high": -0.015,
        "n": 344,
        "by_seed": [-0.0612],
        "figures": told,
    }


def test_a_success_that_is_never_reached_is_null_in_strict_json() -> None:
    data = Gate(False, Shares(by_seed=[0.5, float("inf")])).as_data()
    assert json.loads(json.dumps(data, allow_nan=False))["by_seed"] == [0.5, None]
    assert data["figures"].endswith("0.50, inf")
    assert goals.share_of_texts({"gates": {"O3 goal: a third of the texts": data}}) == float("inf")


def test_goals_read_the_numbers_and_not_the_words() -> None:
    cost = Gate(True, Difference(value=0.0225, low=-0.0075, high=0.05, n=4, by_seed=[0.0225])).as_data()
    del cost["figures"]
    names = ("O5 goal: not 5 points below outcome", "O5 at most 3 points below situational")
    result = {"gates": dict.fromkeys(names, cost)}
    assert goals.penalty_cost(result) == pytest.approx(-0.75)
    assert goals.penalty_cost_mean(result) == pytest.approx(2.25)


@pytest.mark.parametrize("name", KEPT)
def test_the_words_of_a_committed_result_are_those_of_its_numbers(name: str) -> None:
    for kept in KEPT[name].values():
        assert of_data(kept).as_data() == kept


def test_the_committed_gates_are_those_of_the_kept_rows(capsys: pytest.CaptureFixture[str]) -> None:
    found, rows = ALL["gpu_privacy_language"], ALL["gpu_privacy_language_rows"]
    runs = {
        arm: {seed: run_of(rows[f"{arm}_{seed}"]) for seed in seeds} for arm, seeds in found["seeds"].items()
    }
    gates = arms.judged(runs)
    assert gates == found["gates"]
    printed = capsys.readouterr().out
    assert all(f"{name}: {gate['figures']}" in printed for name, gate in gates.items())
