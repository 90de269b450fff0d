"""A trainer that is stopped and started again: the same numbers, one step in both folders, honest books."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from pipelinerl.base.waits import WaitExpired
from pipelinerl.finetune import checkpoints
from pipelinerl.finetune.checkpoints import restore_point, save_checkpoint, settle
from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.run_state.accounting import Outcome, RolloutLog, reconcile
from pipelinerl.run_state.snapshots import Snapshots
from tests.support.builders import trainer_config, write_steps
from tests.support.policy import tiny_model
from tests.unit.finetune.test_loop import Deadly, Killed, Recorder

CLOCK = ("time", "throughput/", "samples_per", "weights/", "stats/time_waiting_for_data")


def metrics(output_dir: Path) -> dict[int, dict[str, Any]]:
    """Records by step, the later one of a step that was made twice; without what depends on the clock."""
    lines = (output_dir / "finetune" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return {
        int(row["step"]): {name: value for name, value in row.items() if not name.startswith(CLOCK)}
        for row in rows
    }


def train(output_dir: Path, broadcaster: Recorder | None = None) -> None:
    with MetricsWriter(output_dir, "finetune") as writer:
        Trainer(trainer_config(output_dir, tiny_model()), Ranks(), writer, broadcaster).run()


@pytest.mark.parametrize("killed_at", [18, 24])
def test_an_interrupted_trainer_gives_the_same_weights_state_and_metrics(
    tmp_path: Path, killed_at: int
) -> None:
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    for folder in (straight, resumed):
        folder.mkdir()
        write_steps(folder, 4, 6)
    train(straight)
    with pytest.raises(Killed):
        train(resumed, Deadly(killed_at))
    train(resumed)
    for name in ("current/model.safetensors", "training_state/tensors.safetensors"):
        expected, found = load_file(straight / "finetune" / name), load_file(resumed / "finetune" / name)
        assert expected.keys() == found.keys() and len(expected) > 5
        assert all(torch.equal(expected[key], found[key]) for key in expected), name
    assert metrics(straight) == metrics(resumed)
    assert set(metrics(straight)) == {6, 12, 18, 24} and "rl/loss" in metrics(straight)[24]


def test_updates_behind_the_checkpoint_are_undone_in_the_books(tmp_path: Path) -> None:
    write_steps(tmp_path, 4, 6)
    with RolloutLog(tmp_path, "actor") as actor:
        actor.record(Outcome.STARTED, [f"g{i}/0" for i in range(24)])
    with pytest.raises(Killed):
        train(tmp_path, Deadly(24))
    assert reconcile(tmp_path)[Outcome.TRAINED] == 24
    with pytest.raises(Killed):
        train(tmp_path, Deadly(12))
    counts = reconcile(tmp_path)
    assert (counts[Outcome.TRAINED], counts.undone, counts.unfinished) == (12, 12, 12)
    train(tmp_path)
    counts = reconcile(tmp_path)
    assert (counts[Outcome.TRAINED], counts.undone, counts.unfinished) == (24, 12, 0)
    assert counts.adds_up


def kill_at(monkeypatch: pytest.MonkeyPatch, number: int) -> Callable[[], int]:
    """Dies before the rename or removal of that number; returns how many there were."""
    count = 0

    def guarded(action: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                raise Killed
            return action(*arguments, **options)

        return run

    monkeypatch.setattr(checkpoints.os, "replace", guarded(os.replace))
    monkeypatch.setattr(checkpoints.shutil, "rmtree", guarded(shutil.rmtree))
    return lambda: count


@pytest.mark.parametrize("with_state", [True, False])
def test_a_save_may_die_anywhere_and_leaves_one_step_in_both_folders(
    tmp_path: Path, model: PreTrainedModel, with_state: bool
) -> None:
    """Every rename and removal of a save, and of the settling that follows it, is where the process dies."""
    write_steps(tmp_path, 4, 6)
    trainer = Trainer(trainer_config(tmp_path, model), Ranks())
    root = tmp_path / "saved"
    seen: set[int] = set()
    for number in range(1, 100):
        shutil.rmtree(root, ignore_errors=True)
        for step in (2, 4):
            trainer.counters.completed_steps = step
            with pytest.MonkeyPatch.context() as patch:
                reached = kill_at(patch, number if step == 4 else 0)
                try:
                    save_checkpoint(
                        root, trainer.learner, trainer.counters, {}, None, True, with_state or step == 2
                    )
                    died = False
                except Killed:
                    died = True
        if not died:
            assert reached() >= 5
            break
        for again in (1, 2, 0):
            with pytest.MonkeyPatch.context() as patch:
                kill_at(patch, again)
                try:
                    settle(root)
                except Killed:
                    assert again
        point = restore_point(root)
        if not with_state and not (root / "training_state").exists():  # the last model, saved as wanted
            assert json.loads((root / "current" / "checkpoint.json").read_text()) == {"step": 4}
            continue
        assert point is not None and point.model == root / "current", number
        marks = [
            json.loads((root / name / "checkpoint.json").read_text())
            for name in ("current", "training_state")
        ]
        assert marks == [{"step": point.step}] * 2
        assert (
            json.loads((root / "training_state/state.json").read_text())["counters"]["completed_steps"]
            == point.step
        )
        assert not list(root.glob("~*"))
        seen.add(point.step)
    assert seen == ({2, 4} if with_state else {2})


def test_a_checkpoint_waits_for_the_snapshots_that_belong_to_it(tmp_path: Path) -> None:
    write_steps(tmp_path, 4, 6)
    roles = ("actor", "preprocess")
    chosen = trainer_config(tmp_path, tiny_model(), max_lag=0, roles=roles, data_deadline_s=0.3)

    def run() -> None:
        trainer = Trainer(chosen, Ranks())
        trainer._follows_preprocess = False  # the steps are there already
        trainer.run()

    Snapshots(tmp_path, "actor", 1).path(12).parent.mkdir(parents=True)
    Snapshots(tmp_path, "actor", 1).path(12).write_text("{}")
    with pytest.raises(WaitExpired, match="the snapshot of preprocess at version 12"):
        run()
    assert restore_point(tmp_path / "finetune") is None
    for version in (12, 24):
        for role in roles:
            path = Snapshots(tmp_path, role, 1).path(version)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
    run()
    point = restore_point(tmp_path / "finetune")
    assert point is not None and point.step == 4
