"""What benchmarks of environments make of runs, and what runs are told."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _learned
from benchmarks.gpu import environments as on_cards
from benchmarks.gpu import side_by_side
from benchmarks.gpu.runs import ENDED
from pipelinerl.config.compose import compose
from pipelinerl.observe.history import Evaluation

STEPS = [{"stats/samples": 64 * n, "stats/completed_steps": n, "time": 60.0 * n} for n in (1, 2, 3)]
EVALUATIONS = [
    Evaluation(0, {"reward": [0.0, 0.5, None], "success": [0.0, 0.0, 0.0], "no_answer": [None] * 3}),
    Evaluation(64, {"reward": [0.5, 0.5, 0.5], "success": [0.0, 0.0, 0.0], "no_answer": [None] * 3}),
    Evaluation(192, {"reward": [1.0, 0.5, 1.0], "success": [1.0, 0.0, 1.0], "no_answer": [None] * 3}),
]


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """That of a run with these steps and evaluations."""
    monkeypatch.setattr(_learned, "read_evaluations", lambda _: EVALUATIONS)
    monkeypatch.setattr(_learned, "read_metrics", lambda *_: STEPS)
    return _learned.row_of(7, Path("textarena_7"))


def test_a_row_has_both_ends_of_each_metric_and_the_way_between(row: dict[str, Any]) -> None:
    assert row["values"].keys() == {"reward", "success"}  # one that never applied is left out
    assert row["values"]["success"] == [[0.0, 0.0, 0.0], [1.0, 0.0, 1.0]]
    assert row["curve"]["reward"] == [[0, 0.25], [64, 0.5], [192, pytest.approx(2.5 / 3)]]
    assert (row["texts"], row["steps"], row["training_min"]) == (192, 3, 2.0)
    assert row["texts_per_s"] == pytest.approx(128 / 120)


def test_values_are_paired_by_problem_and_averaged_over_seeds(row: dict[str, Any]) -> None:
    table = _learned.table_of([row, row | {"seed": 8}])
    assert table["reward"]["difference"]["n"] == 2  # the third problem has no value before
    assert table["reward"]["difference"]["mean"] == pytest.approx(0.5)
    assert table["success"]["after"]["mean"] == pytest.approx(2 / 3)
    figures = {one.name: one.value for one in _learned.figures_of([row], table, "textarena: ")}
    assert figures["textarena: success before"] == 0.0
    assert figures["textarena: seed 7: training"] == 2.0
    assert figures["textarena: reward difference, lower end"] <= 0.5


def test_a_run_without_a_second_evaluation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_learned, "read_evaluations", lambda _: EVALUATIONS[:1])
    with pytest.raises(ValueError, match="logic_0: 1 evaluations"):
        _learned.row_of(0, Path("logic_0"))


def options_in(folder: Path, hardware: str = "gpu", **given: Any) -> Namespace:
    asked = {"domains": ["textarena", "logic"], "seeds": [0, 1], "steps": 60, "per_card": 3, "overrides": []}
    places = {"work": folder, "out": folder / "out.json", "model": folder}
    return Namespace(hardware=hardware, **asked, **places, **given)


@pytest.mark.parametrize("domain", on_cards.TRIALS)
@pytest.mark.parametrize("hardware", ["gpu", "cpu"])
def test_every_run_composes_and_is_evaluated_on_the_way(domain: str, hardware: str, tmp_path: Path) -> None:
    options = options_in(tmp_path, hardware)
    tree = compose(on_cards.overrides_of(options, domain, 3)).tree
    texts = tree.finetune.gradient_accumulation_passes
    assert tree.seed == 3 and tree.finetune.learning_rate == 1e-5 and tree.max_lag == 4 * texts
    assert tree.finetune.max_train_steps * texts == 4 * tree.eval_every_n_versions
    if hardware == "gpu":
        kwargs = tree.vllm_config.vllm_kwargs
        assert tree.world.share_device and kwargs["kv-cache-memory-bytes"] == on_cards.KV_BYTES
        assert kwargs["max_model_len"] == on_cards.TRIALS[domain].context


def test_table_and_figure_are_of_the_rows_that_are_there(tmp_path: Path, row: dict[str, Any]) -> None:
    options = options_in(tmp_path)
    on_cards.write_all(options)
    assert not options.out.exists()
    for seed in (0, 1):
        on_cards.row_file(options, "textarena", seed).write_text(json.dumps(row | {"seed": seed}))
    on_cards.write_all(options)
    kept = json.loads(options.out.read_text())
    assert kept["settings"]["seeds"] == {"textarena": [0, 1]}
    assert kept["table"]["textarena"]["success"]["difference"]["n"] == 3
    assert options.out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert on_cards.wanted(options) == [("logic", 0), ("logic", 1)]


def test_a_failed_run_leaves_the_others_and_is_wanted_again(
    tmp_path: Path, row: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    script = "import sys; sys.exit(3 if 'logic' in sys.argv[1] else 0)"
    monkeypatch.setattr(on_cards.runs, "launcher", lambda out, _: [sys.executable, "-c", script, str(out)])
    monkeypatch.setattr(on_cards, "row_of", lambda seed, _: row | {"seed": seed})
    monkeypatch.setattr(on_cards.runs, "leave_in_order", lambda: None)
    monkeypatch.setattr(side_by_side, "POLL_S", 0.02)
    monkeypatch.setenv("PYTHONPATH", "")
    given = ["--model", str(tmp_path), "--hardware", "cpu", "--domains", "textarena", "logic"]
    given += ["--work", str(tmp_path / "work"), "--limit", "60"]
    assert on_cards.main(given) == 1
    assert "left: logic 0" in capsys.readouterr().out
    assert (tmp_path / "work/gpu_environments.runs.tar.gz").is_file()
    assert on_cards.main(given) == 1  # the finished one is not begun again
    assert "textarena_0: begins" not in capsys.readouterr().out


def test_what_the_limit_ended_has_no_row(tmp_path: Path) -> None:
    assert not on_cards.task_of(options_in(tmp_path), "logic", 0).keep(ENDED)


def test_without_a_model_one_line_says_how_to_make_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert on_cards.main(["--model", str(tmp_path)]) == 2
    assert "python -m pipelinerl.pretrained" in capsys.readouterr().out
