"""The trainer on recorded streams: announcements, accounting, checkpoints, resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from pipelinerl.finetune.broadcast import Broadcaster
from pipelinerl.finetune.checkpoints import MARKER, restore_point, settle
from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.run_state.announcements import trainer_stream
from pipelinerl.run_state.resume_point import ResumePoint
from pipelinerl.streams import read_stream
from tests.support.builders import trainer_config, write_steps
from tests.support.policy import tiny_model


class Recorder(Broadcaster):
    """A broadcaster that notes what it was asked to publish."""

    def __init__(self) -> None:
        self.versions: list[int] = []

    def publish(self, version: int) -> dict[str, float]:
        self.versions.append(version)
        return {"weights/bytes": 1.0}


class Killed(RuntimeError): ...


class Deadly(Recorder):
    """Stops the trainer when it publishes a certain version."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self._last = version

    def publish(self, version: int) -> dict[str, float]:
        if version >= self._last:
            raise Killed
        return super().publish(version)


def messages(output_dir: Path) -> list[tuple[str, int]]:
    with read_stream(trainer_stream(output_dir)) as stream:
        rows = stream.read_available()
    return [(r["kind"], r.get("version", r.get("samples_processed", -1))) for r in rows]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def test_a_run_announces_in_order_and_leaves_its_results(tmp_path: Path, model: PreTrainedModel) -> None:
    write_steps(tmp_path, 4, 6)
    recorder = Recorder()
    with MetricsWriter(tmp_path, "finetune") as writer:
        Trainer(trainer_config(tmp_path, model), Ranks(), writer, recorder).run()
    assert recorder.versions == [0, 6, 12, 18, 24]
    said = messages(tmp_path)
    assert said[:2] == [("samples_processed", 0), ("weight_update_success", 0)]
    assert said[-1] == ("training_done", -1)
    samples = [n for kind, n in said if kind == "samples_processed"]
    assert samples == sorted(samples) and samples[-1] == 24
    for at, (kind, version) in enumerate(said):
        if kind == "weight_update_success" and version:
            assert ("samples_processed", version) in said[:at]
    summary = json.loads((tmp_path / "finetune/summary.json").read_text())
    assert (summary["completed_steps"], summary["samples"]) == (4, 24)
    assert json.loads((tmp_path / "finetune/rl_summary.json").read_text())["completed_steps"] == 4
    rows = [json.loads(line) for line in (tmp_path / "finetune/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [6, 12, 18, 24]
    for name in (
        "rl/ess",
        "stats/grad_norm",
        "throughput/tokens_per_sec",
        "stats/lag",
        "stats/lag_histogram",
    ):
        assert name in rows[0], name
    trained = [json.loads(x) for x in (tmp_path / "accounting/finetune.jsonl").read_text().splitlines()]
    assert sum(len(entry["rollouts"]) for entry in trained if entry["outcome"] == "trained") == 24
    assert restore_point(tmp_path / "finetune").step == 4


def test_update_interval_spans_steps(tmp_path: Path, model: PreTrainedModel) -> None:
    write_steps(tmp_path, 4, 6)
    recorder = Recorder()
    chosen = trainer_config(tmp_path, model, texts_per_update=12)
    Trainer(chosen, Ranks(), None, recorder).run()
    assert recorder.versions == [0, 12, 24]


@pytest.mark.parametrize("killed_at", [18, 24])
def test_resume_equals_uninterrupted_bit_for_bit(tmp_path: Path, killed_at: int) -> None:
    for name in ("straight", "resumed"):
        (tmp_path / name).mkdir()
        write_steps(tmp_path / name, 4, 6)
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    Trainer(trainer_config(straight, tiny_model()), Ranks()).run()
    with pytest.raises(Killed):
        Trainer(trainer_config(resumed, tiny_model()), Ranks(), None, Deadly(killed_at)).run()
    assert restore_point(resumed / "finetune").step == 2
    recorder = Recorder()
    again = Trainer(trainer_config(resumed, tiny_model()), Ranks(), None, recorder)
    again.run()
    assert recorder.versions == [12, 18, 24]
    expected, found = weights(straight / "finetune/current"), weights(resumed / "finetune/current")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert again.counters.samples == 24 and again.counters.completed_steps == 4
    assert ResumePoint.read(resumed).version == 12


def test_a_finished_run_starts_again_without_training(tmp_path: Path, model: PreTrainedModel) -> None:
    write_steps(tmp_path, 4, 6)
    Trainer(trainer_config(tmp_path, model), Ranks()).run()
    before = weights(tmp_path / "finetune/current")
    recorder = Recorder()
    Trainer(trainer_config(tmp_path, model), Ranks(), None, recorder).run()
    assert recorder.versions == [24]
    after = weights(tmp_path / "finetune/current")
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("renamed", [("current",), ("current", "training_state")])
def test_a_save_interrupted_between_renames_is_finished(
    tmp_path: Path, model: PreTrainedModel, renamed: tuple[str, ...]
) -> None:
    write_steps(tmp_path, 4, 6)
    Trainer(trainer_config(tmp_path, model), Ranks()).run()
    root = tmp_path / "finetune"
    for name in renamed:
        (root / name).rename(root / f"~{name}")
        (root / name).mkdir()
        (root / name / MARKER).write_text('{"step": 2}')
    assert restore_point(root).step == 4
    point = settle(root)
    assert point is not None and point.model == root / "current" and not list(root.glob("~*"))


def test_half_written_folders_do_not_count(tmp_path: Path, model: PreTrainedModel) -> None:
    write_steps(tmp_path, 4, 6)
    Trainer(trainer_config(tmp_path, model), Ranks()).run()
    root = tmp_path / "finetune"
    (root / "~current").mkdir()
    (root / "~training_state").mkdir()
    assert restore_point(root).step == 4
    (root / "training_state" / MARKER).unlink()
    assert restore_point(root) is None


def test_stale_texts_are_counted_and_written_down(tmp_path: Path, model: PreTrainedModel) -> None:
    write_steps(tmp_path, 4, 6)
    late = Trainer(trainer_config(tmp_path, model, max_lag=0), Ranks())
    late.counters.samples = 100
    late.run()
    assert late.counters.samples_too_old_to_train == 24
    entries = [json.loads(x) for x in (tmp_path / "accounting/finetune.jsonl").read_text().splitlines()]
    assert {entry["outcome"] for entry in entries} == {"stale"}


def test_a_resumed_run_may_change_its_learning_rate(tmp_path: Path, model: PreTrainedModel) -> None:
    write_steps(tmp_path, 4, 6)
    Trainer(trainer_config(tmp_path, model, lr_scheduler_type="constant"), Ranks()).run()
    again = Trainer(trainer_config(tmp_path, model, lr_scheduler_type="constant", learning_rate=0.5), Ranks())
    assert again.learner.learning_rate == 0.5


def test_a_foreign_step_and_a_short_step_are_named(tmp_path: Path, model: PreTrainedModel) -> None:
    write_steps(tmp_path, 4, 6)
    with pytest.raises(ValueError, match="step 0 holds 6 texts, expected 8"):
        Trainer(trainer_config(tmp_path, model, texts_per_step=8), Ranks()).run()
    trainer = Trainer(trainer_config(tmp_path, model), Ranks())
    trainer.counters.completed_steps = 1
    with pytest.raises(ValueError, match="holds step 0 where step 1 was expected"):
        trainer.run()


def test_missing_data_names_the_wait(tmp_path: Path, model: PreTrainedModel) -> None:
    with pytest.raises(TimeoutError, match="texts of step 0"):
        Trainer(trainer_config(tmp_path, model, data_deadline_s=0.2), Ranks()).run()
