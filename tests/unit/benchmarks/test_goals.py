"""Goals read one value of the results each, and every miss is explained."""

import json
from pathlib import Path

import pytest

from benchmarks import goals

ROWS = [goal for rows in goals.tables().values() for goal in rows]


@pytest.mark.parametrize("goal", ROWS, ids=lambda goal: goal.row)
def test_a_row_reads_one_value_and_has_one_limit(goal: goals.Goal) -> None:
    assert sum((goal.figure is not None, bool(goal.keys), goal.derived is not None)) == 1
    assert (goal.at_least is None) != (goal.at_most is None)
    value = goal.value(goals.FOLDER / "results")
    if value is not None and not goal.met(value):
        assert goal.why, f"{goal.row} is missed ({value:g}) and nobody says why"


def test_a_figure_nobody_took_is_open_and_a_bad_one_missed(tmp_path: Path) -> None:
    rows = [
        goals.Goal("fast", "speed", "ms", figure="a", at_most=3, why="it rained"),
        goals.Goal("slow", "speed", "ms", figure="b", at_most=3),
        goals.Goal("other", "speed", "ms", figure="c", at_most=3),
        goals.Goal("none", "nothing", "x", keys=("a", "b"), at_least=3),
    ]
    results = {"figures": {"a": {"value": 4.0}, "b": {"value": 3.0}}}
    (tmp_path / "speed.json").write_text(json.dumps(results))
    text = goals.section(rows, tmp_path)
    assert "| fast | 4 ms | ≤ 3, **missed** (1) | `speed` |" in text
    assert "| slow | 3 ms | ≤ 3 | `speed` |" in text
    assert "| other | not measured | ≤ 3 ms | `speed` |" in text
    assert "| none | not measured | ≥ 3 x | `nothing` |" in text
    assert "1. it rained" in text
    assert goals.unmet(rows, tmp_path) == 3
