"""The trainer on recorded streams: announcements, accounting, checkpoints, resume."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelinerl.config.finetune import CorrectionConfig, RLConfig
from pipelinerl.finetune.broadcast import Announce
from pipelinerl.finetune.checkpoints import settle
from pipelinerl.finetune.idle import IdleWatch
from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.metrics import StepStatistics
from pipelinerl.finetune.types import TrainingMetrics
from pipelinerl.observe import mismatch
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.run_state.announcements import AnnouncedVersion, trainer_stream
from pipelinerl.run_state.epochs import note_problems
from pipelinerl.run_state.resume_point import ResumePoint
from pipelinerl.run_state.saved_steps import MARKER
from pipelinerl.streams import read_stream
from tests.support.builders import ready
from tests.support.training import Noting, assert_resumes_bit_for_bit, saved, train, trainer

CLOCK = ("time", "throughput/", "samples_per", "weights/", "stats/time_waiting_for_data")


def messages(output_dir: Path) -> list[tuple[str, int]]:
    with read_stream(trainer_stream(output_dir)) as stream:
        rows = stream.read_available()
    return [(r["kind"], r.get("version", r.get("samples_processed", -1))) for r in rows]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics(output_dir: Path) -> dict[int, dict[str, Any]]:
    """Records by step, the later one of a step that was made twice; without what depends on the clock."""
    return {
        int(row["step"]): {name: value for name, value in row.items() if not name.startswith(CLOCK)}
        for row in lines(output_dir / "finetune/metrics.jsonl")
    }


def test_a_run_announces_in_order_and_leaves_its_results(tmp_path: Path) -> None:
    noted = Noting()
    train(tmp_path, noted)
    assert noted.versions == [0, 6, 12, 18, 24]
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
    rows = lines(tmp_path / "finetune/metrics.jsonl")
    assert [row["step"] for row in rows] == [6, 12, 18, 24]
    names = {"rl/ess", "stats/grad_norm", "throughput/tokens_per_sec", "stats/lag", "stats/lag_histogram"}
    assert names <= rows[0].keys()
    trained = lines(tmp_path / "accounting/finetune.jsonl")
    assert sum(len(entry["rollouts"]) for entry in trained if entry["outcome"] == "trained") == 24
    assert settle(tmp_path / "finetune") == 4


def test_a_version_is_announced_only_when_the_engines_have_it(tmp_path: Path) -> None:
    """Else a request of the new version would leave blocks of the old weights in a prefix cache."""
    heard: list[int | None] = []

    class Listening(Noting):
        def publish(self, version: int, announce: Announce) -> dict[str, float]:
            with AnnouncedVersion(tmp_path) as announced:
                heard.append(announced.newest())
            return super().publish(version, announce)

    train(tmp_path, Listening())
    assert heard == [None, 0, 6, 12, 18]


@pytest.mark.parametrize(
    ("shape", "warm_up", "expected"),
    [
        ("linear", 1, [0.4 / 2, 0.4, 0.4 * 2 / 3, 0.4 / 3]),  # warm-up, then down to 0 in three
        ("cosine", 0, [0.4, 0.2 + math.sqrt(0.02), 0.2, 0.2 - math.sqrt(0.02)]),  # 0.2 (1 + cos(πk/4))
        ("constant_with_warmup", 9, [0.04, 0.08, 0.12, 0.16]),  # it ends while it warms up
        ("constant", 9, [0.4] * 4),
    ],
)
def test_a_record_has_the_learning_rate_of_its_step(
    tmp_path: Path, shape: str, warm_up: int, expected: list[float]
) -> None:
    train(tmp_path, lr_scheduler_type=shape, learning_rate=0.4, num_warmup_steps=warm_up)
    found = [record["stats/lr"] for _, record in sorted(metrics(tmp_path).items())]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_a_run_whose_rate_is_0_says_so_once(
    tmp_path: Path, rate: float, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, learning_rate=rate)
    said = [
        one for one in caplog.records if getattr(one, "remark", False) and "learning_rate=0:" in one.message
    ]
    assert len(said) == (rate == 0)


def test_sampled_tokens_are_counted_without_prompts_and_stale_ones(tmp_path: Path) -> None:
    train(tmp_path / "fresh", max_lag=100)
    found = [record for _, record in sorted(metrics(tmp_path / "fresh").items())]
    made = [ready(number) for number in range(24)]  # what `write_steps` records: six in each of four steps
    expected = [sum(len(sample.old_logprobs) for sample in made[: 6 * step]) for step in range(1, 5)]
    assert [record["stats/sampled_tokens"] for record in found] == expected
    assert found[-1]["stats/tokens"] == sum(len(sample.input_ids) for sample in made)
    late = trainer(tmp_path / "late", max_lag=0)
    late.counters.samples = 100
    late.run()
    assert late.counters.sampled_tokens == 0 and late.counters.tokens_too_old_to_train == expected[-1]


def test_sampled_tokens_of_filtered_samples_are_not_trained() -> None:
    counters = TrainingMetrics()
    step = StepStatistics(texts=2, tokens=[30], lags=Counter({0: 12, 8: 5}), masked=Counter(overlong=7))
    counters.count(step, grad_norm=1.0, dropped_in_queue=0)
    assert (counters.tokens, counters.sampled_tokens) == (30, 10)


def test_update_interval_spans_steps(tmp_path: Path) -> None:
    noted = Noting()
    train(tmp_path, noted, texts_per_update=12)
    assert noted.versions == [0, 12, 24]


@pytest.mark.parametrize("killed_at", [18, 24])
def test_resume_equals_uninterrupted_bit_for_bit(tmp_path: Path, killed_at: int) -> None:
    straight, resumed = assert_resumes_bit_for_bit(tmp_path, killed_at)
    assert metrics(straight) == metrics(resumed)
    assert set(metrics(straight)) == {6, 12, 18, 24} and "rl/loss" in metrics(straight)[24]
    assert [version for kind, version in messages(resumed) if kind == "weight_update_success"][-3:] == [
        12,
        18,
        24,
    ]
    assert ResumePoint.read(resumed).version == 12


def test_a_finished_run_starts_again_without_training(tmp_path: Path) -> None:
    train(tmp_path)
    before, noted = saved(tmp_path), Noting()
    train(tmp_path, noted)
    assert noted.versions == [24]
    after = saved(tmp_path)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_epochs_end_a_run_before_its_steps_and_more_of_them_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of six texts, each of a group of its own, of eight problems: the ninth is of the second epoch."""

    def numbered(group: str, rollout: int) -> str:
        return f"0-{int(group.removeprefix('g')):06d}/{rollout}"

    monkeypatch.setattr("pipelinerl.finetune.collect.rollout_id", numbered)
    note_problems(tmp_path, 8)
    noted = Noting()
    train(tmp_path, noted, max_epochs=1)
    assert noted.versions == [0, 6, 12] and messages(tmp_path)[-1] == ("training_done", -1)
    summary = json.loads((tmp_path / "finetune/summary.json").read_text())
    assert (summary["completed_steps"], summary["epoch"]) == (2, 1)
    again = Noting()
    train(tmp_path, again, max_epochs=1)
    assert again.versions == [12]
    train(tmp_path, again, max_epochs=2)
    assert again.versions == [12, 12, 18] and settle(tmp_path / "finetune") == 3


def test_half_written_folders_do_not_count(tmp_path: Path) -> None:
    train(tmp_path)
    root = tmp_path / "finetune"
    (root / "~current").mkdir()
    (root / "~training_state").mkdir()
    assert settle(root) == 4
    (root / "training_state" / MARKER).unlink()
    assert settle(root) is None


def test_stale_texts_are_counted_and_written_down(tmp_path: Path) -> None:
    late = trainer(tmp_path, max_lag=0)
    late.counters.samples = 100
    late.run()
    assert late.counters.samples_too_old_to_train == 24
    assert {entry["outcome"] for entry in lines(tmp_path / "accounting/finetune.jsonl")} == {"stale"}


def test_a_resumed_run_may_change_its_learning_rate(tmp_path: Path) -> None:
    train(tmp_path, lr_scheduler_type="constant")
    again = trainer(tmp_path, lr_scheduler_type="constant", learning_rate=0.5)
    assert again.learner.learning_rate == 0.5


def test_a_foreign_step_and_a_short_step_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="step 0 holds 6 samples, expected 8"):
        train(tmp_path, texts_per_step=8)
    ahead = trainer(tmp_path)
    ahead.counters.completed_steps = 1
    with pytest.raises(ValueError, match="holds step 0 where step 1 was expected"):
        ahead.run()


def test_missing_data_names_the_wait(tmp_path: Path) -> None:
    (tmp_path / "streams/training_data").mkdir(parents=True)
    with pytest.raises(TimeoutError, match="samples of step 0"):
        train(tmp_path, data_deadline_s=0.2)


class Compared(Noting):
    """Engines that agreed with the trainer on the probe."""

    def publish(self, version: int, announce: Announce) -> dict[str, float]:
        return super().publish(version, announce) | {"weights/parity_limit": 1e-4}


@pytest.mark.parametrize(("bounds", "said"), [((1.0, 1.0), True), ((0.0, 1e30), False)])
def test_steps_without_a_gradient_are_remarked_once(
    tmp_path: Path, bounds: tuple[float, float], said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """No recorded token has the trainer's probability exactly, so narrow bounds leave out each of them."""
    low, high = bounds
    correction = CorrectionConfig(mode="mask", low=low, high=high)
    train(tmp_path, attempts=1, rl=RLConfig(epsilon_high=4.0, correction=correction))
    found = [one for one in caplog.records if "the gradient of" in one.message]
    assert len(found) == said, "24 samples are more than those of 20 groups of one"
    assert all(getattr(one, "remark", False) for one in found)
    assert not said or "finetune.rl.correction.mode=mask leaves out tokens" in found[0].message
    assert all((row["stats/grad_norm"] == 0) is said for row in metrics(tmp_path).values())


def test_a_step_with_a_gradient_begins_the_count_of_idle_ones_anew() -> None:
    watch = IdleWatch(RLConfig(overlong_filtering=True), attempts=2)
    assert [watch.add(norm, 20) for norm in (0.0, 1e-9, 0.0)] == [None] * 3
    line = watch.add(0.0, 20)
    assert line is not None and "2 steps in a row (40 samples)" in line and "overlong_filtering" in line
    assert watch.add(0.0, 20) is None, "once"


@pytest.mark.parametrize("follows", [True, False])
def test_samples_that_the_newest_weights_cannot_have_drawn_so_are_remarked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, follows: bool
) -> None:
    """The recorded log-probabilities are random: nats from those of the weights that they name."""
    monkeypatch.setattr(mismatch, "LEAST_TOKENS", 20)
    monkeypatch.setattr(Trainer, "_first_record", lambda *_: 0)
    one = trainer(tmp_path, Compared())
    one._follows_actor = follows
    with MetricsWriter(tmp_path, "finetune") as one._writer:
        one.run()
    rows = lines(tmp_path / "finetune/metrics.jsonl")
    assert {row["mismatch/limit"] for row in rows} == {0.01}
    assert all(row["mismatch/lag_0/mean_abs"] > 0.1 for row in rows)
    said = [r.getMessage() for r in caplog.records if getattr(r, "remark", False)]
    assert len(said) == (1 if follows else 0)
    assert all("nats apart on" in line and "rounding explains 0.01" in line for line in said)


@pytest.mark.parametrize("actor", [True, False])
def test_only_beside_an_actor_a_version_has_to_be_announced_before_it_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, actor: bool
) -> None:
    """The steps were sampled by versions 0, 6, 12 and 18; this trainer announces 0, 12 and 24."""
    monkeypatch.setattr(Trainer, "_first_record", lambda *_: 0)
    roles = ("actor", "preprocess") if actor else ("preprocess",)
    if actor:
        with pytest.raises(ValueError, match="weight version 6, which was never announced"):
            train(tmp_path, roles=roles, texts_per_update=12)
        return
    train(tmp_path, roles=roles, texts_per_update=12)
    assert [row["stats/lag"] for row in metrics(tmp_path).values()] == [0, -6, 0, -6]
