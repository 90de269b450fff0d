"""What `benchmarks.pretrained` makes of runs: rows, the pooled table, and runs beside each other."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pretrained
from benchmarks._pretrained_figure import draw
from benchmarks.gpu.runs import ENDED, keep_row
from pipelinerl.observe.history import Evaluation


def row(seed: int, before: list[float], after: list[float]) -> dict[str, Any]:
    curve = [{"texts": 0, "minutes": 0.0, "success": 0.1}, {"texts": 64, "minutes": 2.0, "success": 0.5}]
    tasks = ["sums", "sums", "products", "products"]
    return {"seed": seed, "tasks": tasks, "before": before, "after": after, "curve": curve}


ROWS = [row(0, [0, 0, 1, 0], [1, 0, 1, 1]), row(1, [1, 0, 0, 0], [1, 1, 1, 1])]


def test_questions_are_paired_by_family_and_count_once() -> None:
    table = pretrained.table_of(ROWS)
    assert list(table) == ["all", "sums", "products"]
    assert [table["sums"][when]["mean"] for when in ("before", "after", "difference")] == [0.25, 0.75, 0.5]
    assert table["products"]["difference"]["mean"] == 0.75
    assert table["all"]["difference"]["n"] == 4 and table["all"]["difference"]["mean"] == 0.625
    # No question became worse, so the interval of the paired difference lies above 0.
    assert 0.0 < table["all"]["difference"]["low"] < 0.625 < table["all"]["difference"]["high"] <= 1.0
    others = {**ROWS[1], "tasks": ["sums"] * 4}
    with pytest.raises(AssertionError, match="different questions"):
        pretrained.table_of([ROWS[0], others])


def test_a_run_that_was_ended_is_in_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep_row(tmp_path / "seed_0.json", ROWS[0], 0)
    keep_row(tmp_path / "seed_1.json", ROWS[1], ENDED)
    assert [path.name for path in sorted(tmp_path.glob("seed_*.json"))] == ["seed_0.json"]
    assert (tmp_path / "seed_1.partial").is_file() and "seed_1: ended with" in capsys.readouterr().out


def test_only_runs_on_cards_have_goals() -> None:
    reached = {"steps": 60, "samples_per_s": 3.0, "training_s": 1200.0}
    rows = [one | reached for one in ROWS]
    on_cards, on_cores = (
        {one.name: one.met for one in pretrained.figures_of(rows, pretrained.table_of(rows), goals)}
        for goals in (True, False)
    )
    assert on_cards["seed 0: training"] is False  # 20 minutes, 10 are the goal
    assert on_cards["all: difference, lower end"] is True
    assert set(on_cores.values()) == {None}


def test_the_curve_counts_minutes_of_training() -> None:
    steps = [{"stats/samples": 64 * n, "time": 1000.0 + 60 * n} for n in (1, 2, 3)]
    passes = [
        Evaluation(0, {"success": [0.0, None]}),
        Evaluation(130, {"success": [1.0, 0.0]}),
        Evaluation(192, {"success": [1.0, 1.0]}),
    ]
    curve = pretrained.curve_of(steps, passes)
    assert [one["minutes"] for one in curve] == [0.0, 1.0, 2.0]
    assert [one["success"] for one in curve] == [0.0, 0.5, 1.0]  # a rollout that failed is not right


def test_engines_beside_each_other_share_their_card(tmp_path: Path) -> None:
    options = Namespace(hardware="gpu", model=tmp_path, steps=0, parallel=3, overrides=["max_lag=7"])
    told = pretrained.overrides_of(options, 2)
    assert "vllm_config.vllm_kwargs.gpu-memory-utilization=0.2" in told and told[-1] == "max_lag=7"
    assert not [one for one in told if "max_train_steps" in one]
    alone = pretrained.overrides_of(Namespace(**{**vars(options), "parallel": 1, "steps": 5}), 2)
    assert not [one for one in alone if "gpu-memory" in one] and "finetune.max_train_steps=5" in alone


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pretrained.main(["--model", str(tmp_path)]) == 2
    assert "python -m pipelinerl.pretrained" in capsys.readouterr().err


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    draw(ROWS, pretrained.table_of(ROWS), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
