"""A trainer stopped and started again: the same step in both folders, ends of rollouts rolled back."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelinerl.base.waits import WaitExpired
from pipelinerl.finetune import checkpoints
from pipelinerl.finetune.checkpoints import load_state, resume_step, save_checkpoint, settle
from pipelinerl.finetune.state import Part
from pipelinerl.run_state.accounting import Outcome, RolloutLog, reconcile
from pipelinerl.run_state.snapshots import Snapshots
from tests.support.training import Deadly, Killed, train, trainer


def test_updates_behind_the_checkpoint_are_undone_in_the_accounting(tmp_path: Path) -> None:
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


def test_a_resume_says_that_ends_of_its_checkpoint_were_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Killed):
        train(tmp_path, Deadly(24))
    path = tmp_path / "accounting/finetune.jsonl"
    assert not [one for one in caplog.messages if str(path) in one]
    path.unlink()
    train(tmp_path)
    (said,) = [one for one in caplog.messages if str(path) in one]
    assert "was removed or cut" in said


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
    tmp_path: Path, with_state: bool
) -> None:
    """Every rename and removal of a save, and of the settling that follows it, is where the process dies."""
    one = trainer(tmp_path)
    root = tmp_path / "saved"
    seen: set[int] = set()
    for number in range(1, 100):
        shutil.rmtree(root, ignore_errors=True)
        for step in (2, 4):
            one.counters.completed_steps = step
            with pytest.MonkeyPatch.context() as patch:
                reached = kill_at(patch, number if step == 4 else 0)
                try:
                    save_checkpoint(root, one.learner, one.counters, {}, None, True, with_state or step == 2)
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
        saved = settle(root)
        if not with_state and not (root / "training_state").exists():  # the last model, saved as wanted
            assert json.loads((root / "current" / "checkpoint.json").read_text())["step"] == 4
            continue
        marks = [
            json.loads((root / name / "checkpoint.json").read_text())["step"]
            for name in ("current", "training_state")
        ]
        assert saved is not None and marks == [saved] * 2, number
        assert resume_step(root) == saved, "both halves are what was saved"
        assert (
            json.loads((root / "training_state/state.json").read_text())["counters"]["completed_steps"]
            == saved
        )
        assert not list(root.glob("~*"))
        seen.add(saved)
    assert seen == ({2, 4} if with_state else {2})


def test_the_disk_has_a_checkpoint_before_it_takes_the_place_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may keep a rename and lose what was written before it, of which the disk was not asked."""
    one, root = trainer(tmp_path), tmp_path / "saved"
    fsync, replace = os.fsync, os.replace
    on_disk: dict[int, tuple[int, int]] = {}
    renamed: list[str] = []

    def state(found: os.stat_result) -> tuple[int, int]:
        return found.st_size, found.st_mtime_ns

    def syncs(file: int) -> None:
        fsync(file)
        on_disk[os.fstat(file).st_ino] = state(os.fstat(file))

    def replaces(source: Path, target: Path) -> None:
        if source.is_dir() and target.name in ("current", "training_state"):
            files = [path for path in source.rglob("*") if path.is_file()]
            assert files and all(on_disk.get(one.stat().st_ino) == state(one.stat()) for one in files)
            renamed.append(target.name)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", syncs)
    monkeypatch.setattr(os, "replace", replaces)
    for step in (2, 4):
        one.counters.completed_steps = step
        save_checkpoint(root, one.learner, one.counters, {})
    assert renamed == ["current", "training_state"] * 2


@pytest.mark.parametrize("lost", ["moved away", "a link to nothing", "a file"])
@pytest.mark.parametrize("half", ["current", "training_state"])
def test_half_a_checkpoint_is_no_new_run(tmp_path: Path, half: str, lost: str) -> None:
    """Whoever moved `current` away as the finished model would else train from step 0, over what is left."""
    one, root = trainer(tmp_path), tmp_path / "saved"
    one.counters.completed_steps = 4
    save_checkpoint(root, one.learner, one.counters, {}, None, False, True)
    shutil.move(root / half, tmp_path / "elsewhere")
    if lost == "a link to nothing":
        (root / half).symlink_to("gone")
    elif lost == "a file":
        (root / half).touch()
    other = {"current": "training_state", "training_state": "current"}[half]
    with pytest.raises(ValueError, match=rf"{half} is missing.*put back both of one step, or") as refused:
        resume_step(root)
    assert f"{other} is of step 4" in str(refused.value) and "\n" not in str(refused.value)
    (root / half).unlink(missing_ok=True)
    shutil.move(tmp_path / "elsewhere", root / half)
    assert resume_step(root) == 4


def test_a_checkpoint_waits_for_the_snapshots_that_belong_to_it(tmp_path: Path) -> None:
    roles = ("actor", "preprocess")

    def run() -> None:
        one = trainer(tmp_path, max_lag=0, roles=roles, data_deadline_s=0.3)
        one._follows_preprocess = False  # the steps are there already
        one.run()

    Snapshots(tmp_path, "actor", 1).path(12).parent.mkdir(parents=True)
    Snapshots(tmp_path, "actor", 1).path(12).write_text("{}")
    with pytest.raises(WaitExpired, match="the snapshot of preprocess at version 12"):
        run()
    assert settle(tmp_path / "finetune") is None
    for version in (12, 24):
        for role in roles:
            path = Snapshots(tmp_path, role, 1).path(version)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
    run()
    assert settle(tmp_path / "finetune") == 4


@pytest.mark.parametrize("may_lack", [True, False])
def test_a_part_more_is_kept_and_an_older_checkpoint_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_lack: bool
) -> None:
    one, taken_up = trainer(tmp_path), []
    part = Part(
        "mean_reward",
        lambda _, value, tensors: taken_up.append((value, tensors["mean_reward.by_task"].tolist())),
        lambda _: {"count": 3},
        lambda _: [("mean_reward.by_task", torch.tensor([0.5, -2.0]))],
        may_lack,
    )
    save_checkpoint(tmp_path / "older", one.learner, one.counters, {})
    monkeypatch.setattr(checkpoints, "PARTS", (*checkpoints.PARTS, part))
    save_checkpoint(tmp_path / "newer", one.learner, one.counters, {})
    load_state(tmp_path / "newer" / "training_state", one.learner)
    assert taken_up == [({"count": 3}, [0.5, -2.0])]
    if may_lack:
        load_state(tmp_path / "older" / "training_state", one.learner)
        assert len(taken_up) == 1
    else:
        with pytest.raises(ValueError, match="has no mean_reward, so another version saved it"):
            load_state(tmp_path / "older" / "training_state", one.learner)
