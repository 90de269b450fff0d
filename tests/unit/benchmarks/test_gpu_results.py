"""What the scripts for cards make of what a run, a recipe or a limit left behind."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

from benchmarks import async_sync
from benchmarks._figures import Figure
from benchmarks.gpu import shapes, sizes, updates
from benchmarks.gpu.runs import ENDED, LimitedRun, fresh, keep, seconds_per_step
from pipelinerl.config.compose import compose
from pipelinerl.config.files import typed
from pipelinerl.weights.version_update import UpdateReport


def by_name(figures: Iterable[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


def test_seconds_per_step_leave_the_first_steps_out() -> None:
    steps = [(0.0, 1.0), (50.0, 2.0), (60.0, 3.0), (64.0, 5.0)]
    assert seconds_per_step(steps, 3) == 2.0
    with pytest.raises(ValueError, match="too short"):
        seconds_per_step(steps, 5)


def test_a_child_ends_at_its_limit(tmp_path: Path) -> None:
    program = "import time; print('here', flush=True); time.sleep(600)"
    run = LimitedRun([sys.executable, "-c", program], tmp_path / "log")
    assert run.until(lambda: "here" in run.said(), 300.0)
    assert run.end(0.0) == ENDED
    assert run.process.poll() is not None


def test_what_a_terminated_script_started_ends_and_the_script_goes_on(tmp_path: Path) -> None:
    """The limit of a step is its SIGTERM: the run is ended, and what it made is still written down."""
    script = f"""
    import sys
    from pathlib import Path
    from benchmarks.gpu.runs import LimitedRun, leave_in_order
    leave_in_order()
    run = LimitedRun([sys.executable, "-c", "import time; time.sleep(600)"], Path({str(tmp_path / "log")!r}))
    print(run.process.pid, flush=True)
    run.until(lambda: print("waiting", flush=True), 600.0)
    print("afterwards:", run.terminated, run.end(600.0))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 0 and "afterwards: True" in said
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_asynchronous_training_is_compared_with_taking_turns() -> None:
    one = {"seconds_per_step": 1.0, "steps": 14.0, "first_step_s": 60.0, "lag_max_texts": 64.0}
    one |= {"idle_share": 0.0}
    found = {"asynchronous": one, "synchronous": {**one, "seconds_per_step": 2.5, "lag_max_texts": 0.0}}
    ratio = "asynchronous / synchronous, steps per second"
    assert by_name(async_sync.figures_of(found, "gpu"))[ratio].met is True
    assert by_name(async_sync.figures_of(found, "cpu"))[ratio].goal is None
    assert ratio not in by_name(async_sync.figures_of({"asynchronous": one}, "gpu"))


@pytest.mark.parametrize("ahead", [True, False])
def test_the_pause_is_shown_in_its_parts(monkeypatch: pytest.MonkeyPatch, ahead: bool) -> None:
    """Steps of 10 ms and 2 ms between them; what is received ahead is received outside the pause."""
    monkeypatch.setattr(updates, "BETWEEN_S", 0.0)
    inside = {"pause", "finish", "resume"} | (set() if ahead else {"start", "update"})
    seconds = dict.fromkeys(("stage", "send", "start", "update", "pause", "finish", "resume", "total"), 0.01)

    class Publisher:
        def publish(self, version: int, tensors: object) -> UpdateReport:
            return UpdateReport(version, 8, dict(seconds), {"engine": 0.01 * len(inside) + 0.002})

    publisher: Any = Publisher()
    variant = updates.Variant("keep", ahead=ahead)
    row = updates.update_row(variant, torch.nn.Linear(1, 1), publisher, 1)  # type: ignore[arg-type]
    found = by_name(updates.update_figures([row]))
    assert found["paused: keep, 256 in flight"].met is True
    assert {step for step in seconds if f"  keep: of it {step}" in found} == inside
    assert {step for step in seconds if f"  keep: {step}" in found} == seconds.keys() - inside
    assert found["  keep: of it between steps"].value == pytest.approx(2.0)


def test_what_a_run_leaves_on_a_borrowed_machine_is_kept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for path, content in (
        (run / "finetune" / "metrics.jsonl", "{}\n"),
        (run / "actor_vllm_0" / "stderr.log", "x" * 50_000 + "the end"),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(content)
    keep(run, tmp_path / "rl.json")
    assert (tmp_path / "rl.finetune.jsonl").read_text() == "{}\n"
    logs = (tmp_path / "rl.logs.txt").read_text()
    assert logs.startswith("==== actor_vllm_0/stderr.log")
    assert logs.endswith("the end\n") and len(logs) < 25_000


def test_a_measurement_starts_without_the_run_of_an_earlier_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "launcher").mkdir(parents=True)
    assert not fresh(run).exists()
    run.mkdir()
    assert fresh(run).is_dir()  # what no run made is left alone


def preset(*overrides: str) -> DictConfig:
    given = ["+domain=privacy_hopqa", "+preset=privacy_hopqa_from_scratch", *overrides]
    return compose(given).tree


def test_the_model_from_scratch_has_the_size_that_is_asked_for() -> None:
    """50 to 150 million parameters: matrices of the layers and the tied embedding, norms left out."""
    bootstrap = typed(preset("hardware=gpu")).bootstrap
    shape = bootstrap.shape
    attention = shape.hidden * shape.head_dim * 2 * (shape.heads + shape.kv_heads)
    layer = attention + 3 * shape.hidden * shape.mlp
    assert 50e6 < shape.layers * layer + bootstrap.vocab_size * shape.hidden < 150e6
    assert sum(phase.tokens for phase in bootstrap.phases) <= 200e6


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
def test_the_preset_plays_the_small_models_game(hardware: str) -> None:
    tree = preset(f"hardware={hardware}")
    assert tree.privacy_hopqa.prompt_set == "compact"
    assert tree.privacy_hopqa.training_reward_mode == "hop_step_situational"
    assert tree.vllm_config.vllm_kwargs.max_model_len == tree.engine.max_model_len == 1024
    assert tree.engine.kind == ("vllm" if hardware == "gpu" else "embedded")


def test_shapes_that_are_run_are_known() -> None:
    assert {arm.model for arm in (*sizes.ARMS.values(), *sizes.LONG.values())} <= shapes.SHAPES.keys()


def test_the_log_ratio_of_replayed_experts_is_held_against_a_dense_model_at_no_lag() -> None:
    key = "rl/mean_abs_log_ratio_new_old"

    def row(*ratios: tuple[float, float]) -> dict[str, Any]:
        steps = [{key: ratio, "stats/lag_max": lag} for ratio, lag in ratios]
        return {"first_step_s": None, "steps": steps, "plan": [], "peaks_mib": {}, "cards": 2}

    rows = {sizes.REPLAYED: row((0.02, 0), (0.5, 64)), sizes.WIDTH: row((0.01, 0), (0.7, 64))}
    found = by_name(sizes.figures_of(rows))[f"{sizes.REPLAYED}: log ratio at no lag, mean size"]
    assert (found.value, found.goal, found.met) == (0.02, 0.01, False)
    steps = by_name(sizes.figures_of({"hybrid on two": row(*9 * [(0.1, 64)])}))[
        "hybrid on two: trained steps"
    ]
    assert (steps.value, steps.met) == (9, False)


@pytest.mark.parametrize("rows", ["rows of 12000 tokens 40.0", "rows of 12000 tokens over 2 40.0"])
def test_a_trainers_peak_is_held_against_a_plan_for_rows_as_full_as_the_runs(rows: str) -> None:
    """Of 110 GiB 40 are for full rows: rows that are three quarters full need 30 of them."""
    parts = f"110.0 of 140.4 GiB: weights, gradients, optimizer 69.0, {rows}, log-probabilities 1.0"
    step = {"throughput/row_fill": 0.5, "memory/device_peak_bytes": 80 * 2**30}
    run: dict[str, Any] = {"first_step_s": None, "peaks_mib": {}, "cards": 2}
    run["plan"] = [{"subject": "bytes for trainer", "chosen": parts}]
    run["steps"] = [*4 * [step], {**step, "throughput/row_fill": 0.75}]
    [cell] = sizes.cells({"hybrid on two": run})
    assert (cell["predicted_gib"], cell["as_full_gib"], cell["peak_gib"]) == (110.0, 100.0, 80.0)
    found = by_name(sizes.figures_of({"hybrid on two": run}))
    start = "hybrid on two: trainer's card, planned "
    assert found[start + "above its peak"].value == pytest.approx(37.5)
    as_full = found[start + "for rows as full as these above its peak"]
    assert (as_full.value, as_full.goal, as_full.met) == (pytest.approx(25.0), 10, False)


@pytest.mark.parametrize("size", shapes.SHAPES)
def test_a_tiny_model_has_the_layers_of_its_shape(size: str) -> None:
    whole, tiny = (shapes.model_config(size, tiny).get_text_config(decoder=True) for tiny in (False, True))
    assert type(whole) is type(tiny) and tiny.hidden_size < 100
    kinds = [{*(getattr(one, "layer_types", None) or ())} for one in (whole, tiny)]
    assert kinds[0] == kinds[1]
