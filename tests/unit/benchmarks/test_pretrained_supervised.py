"""What `benchmarks.pretrained_supervised` makes of runs, and what runs are told."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _by_metric, _by_task, pretrained_supervised
from pipelinerl.config.compose import compose
from pipelinerl.observe.history import Evaluation

NAMES = ["test/sums", "test/products", "val/sums", "val/products"]
PASSES = [
    Evaluation(0, {"success": [0.0, 0.0, 0.0, None]}),
    Evaluation(512, {"success": [1.0, 0.0, 1.0, 1.0]}),
    Evaluation(1024, {"success": [1.0, 1.0, 1.0, 0.0]}),
]
STEPS = [
    {"stats/samples": 512 * n, "stats/completed_steps": n, "time": 60.0 * n, "weights/parity_mean_abs": 0.1}
    for n in (1, 2)
]


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """That of a run with these passes."""
    for module in (_by_metric, pretrained_supervised):
        monkeypatch.setattr(module, "read_evaluations", lambda _: PASSES)
    monkeypatch.setattr(_by_task, "read_metrics", lambda *_: STEPS)
    monkeypatch.setattr(_by_task, "test_problems", lambda _: [{"dataset": name} for name in NAMES])
    return pretrained_supervised.row_of(3, 1e-5, Path("seed_3"), 0)


def test_the_best_pass_is_that_of_validation_and_not_of_the_held_out_questions(row: dict[str, Any]) -> None:
    assert row["tasks"] == ["sums", "products"] and row["validation_questions"] == 2
    assert (row["before"], row["best"], row["after"]) == ([0.0, 0.0], [1.0, 0.0], [1.0, 1.0])
    assert row["chosen"] == {"texts": 512, "validation": 1.0}
    assert [one["success"] for one in row["curve"]] == [0.0, 0.5, 1.0]
    assert [one["validation"] for one in row["curve"]] == [0.0, 1.0, 0.5]


def test_the_rate_is_chosen_by_validation_over_all_seeds(row: dict[str, Any]) -> None:
    worse = row | {"rate": 5e-5, "after": [1.0, 1.0], "chosen": {"texts": 0, "validation": 0.0}}
    worse["curve"] = [one | {"validation": 0.0} for one in row["curve"]]
    lucky = row | {"rate": 1e-3, "chosen": {"texts": 512, "validation": 2.0}}  # of one seed alone
    rows = [row, row | {"seed": 4}, worse, worse | {"seed": 4}, lucky]
    chosen = pretrained_supervised.by_validation(rows)
    assert {way: [(one["seed"], one["rate"]) for one in found] for way, found in chosen.items()} == {
        "end": [(3, 1e-5), (4, 1e-5)],
        "best": [(3, 1e-5), (4, 1e-5)],
    }


def test_the_two_ways_are_compared_on_the_same_questions_only(row: dict[str, Any]) -> None:
    seeds = [row, row | {"seed": 4}]
    reinforced = [{"seed": seed, "tasks": row["tasks"], "after": [1.0, 1.0]} for seed in (3, 4)]
    found = pretrained_supervised.summary(seeds, reinforced)
    assert found["end"]["beyond"]["difference"]["mean"] == 0.0
    assert found["best"]["beyond"]["difference"]["mean"] == 0.5
    assert found["best"]["beyond"]["seeds"] == {"mean": 0.5, "half": 0.0}
    assert found["best"]["table"]["products"]["difference"]["mean"] == 0.0
    others = [{"seed": 3, "tasks": ["sums"], "after": [1.0]}]
    assert pretrained_supervised.beyond(seeds, "end", others) is None
    names = [one.name for one in pretrained_supervised.figures_of(seeds, found)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
def test_as_many_answers_are_imitated_as_reinforcement_learning_trains_on(hardware: str) -> None:
    options = Namespace(hardware=hardware, model="m", steps=0, overrides=[])
    told = pretrained_supervised.overrides_of(options, 2, 5e-5)
    run, reinforced = (
        compose(given).tree.finetune for given in (told, ["+domain=reasoning_gym", f"hardware={hardware}"])
    )
    for key in ("max_train_steps", "gradient_accumulation_passes", "train_batch_size"):
        assert run[key] == reinforced[key], key
    assert run.learning_rate == 5e-5 and run.rl.policy_loss == "sft" and run.attempts == 1


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pretrained_supervised.main(["--model", str(tmp_path)]) == 2
    assert "python -m pipelinerl.pretrained" in capsys.readouterr().out
