"""The disk of a run fills up: the run ends by name, and goes on from its checkpoint once there is room."""

import contextlib
from pathlib import Path

import pytest

from pipelinerl.base.faults import FAULT, FOLDER
from tests.pipeline.conftest import LauncherProcess, Start
from tests.support.fault_cases import RUN, STEPS, completed_steps
from tests.support.full_disk import enlarge, fill, small_disk

ENDLESS = [*RUN, "finetune.max_train_steps=100000", "finetune.save_checkpoint_steps=2"]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["streams:write:full_disk:12", "finetune:mid_checkpoint:full_disk:2"])
def test_a_write_that_fails_ends_the_run_by_name_and_it_resumes(
    start: Start, tmp_path: Path, point: str
) -> None:
    run = start(*RUN, env={FAULT: point, FOLDER: str(tmp_path)})
    assert run.wait() == 1 and "No space left on device" in run.err.splitlines()[-1], run.err
    assert "Traceback" not in run.err
    run.counts()
    assert completed_steps(run.output_dir) >= (1 if "checkpoint" in point else 0)
    again = start(*RUN)
    assert again.wait() == 0, again.err
    assert completed_steps(again.output_dir) == STEPS and again.counts()


@pytest.mark.slow
def test_a_disk_that_is_really_full_ends_the_run_by_name_and_it_resumes(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64m") as disk:
        run = LauncherProcess(disk / "run", ENDLESS)
        with contextlib.closing(run):
            run.until(lambda: completed_steps(run.output_dir) >= 2, "the first checkpoint")
            fill(disk)
            assert run.wait() == 1
        assert "no space" in run.err.splitlines()[-1].lower() and "Traceback" not in run.err, run.err
        saved = completed_steps(run.output_dir)
        assert saved >= 2
        enlarge(disk, "256m")
        again = LauncherProcess(run.output_dir, [*ENDLESS, f"finetune.max_train_steps={saved + 2}"])
        with contextlib.closing(again):
            assert again.wait() == 0, again.err
        assert completed_steps(run.output_dir) == saved + 2
        run.counts()
