"""The disk of a run fills up: the run ends by name, and goes on from its checkpoint once there is room."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pipelinerl.base.faults import FAULT, FOLDER
from pipelinerl.run_state.accounting import reconcile
from tests.pipeline.conftest import LauncherProcess
from tests.support.fault_cases import RUN, STEPS, completed_steps
from tests.support.full_disk import enlarge, fill, small_disk

ENDLESS = [*RUN, "finetune.max_train_steps=100000", "finetune.save_checkpoint_steps=2"]


def run(output_dir: Path, arguments: list[str], env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Exit status and what was said on stderr."""
    process = LauncherProcess(output_dir, arguments, env)
    try:
        return process.wait(), process.err
    finally:
        process.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ["streams:write:full_disk:12", "finetune:mid_checkpoint:full_disk:2"])
def test_a_write_that_fails_ends_the_run_by_name_and_it_resumes(tmp_path: Path, point: str) -> None:
    output_dir = tmp_path / "run"
    status, said = run(output_dir, RUN, {FAULT: point, FOLDER: str(tmp_path)})
    assert status == 1 and "No space left on device" in said.splitlines()[-1], said
    assert "Traceback" not in said
    assert reconcile(output_dir).adds_up
    saved = completed_steps(output_dir)
    assert saved >= (1 if "checkpoint" in point else 0)
    status, said = run(output_dir, RUN)
    assert status == 0, said
    assert completed_steps(output_dir) == STEPS and reconcile(output_dir).adds_up


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_disk_that_is_really_full_ends_the_run_by_name_and_it_resumes(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64m") as disk:
        output_dir = disk / "run"
        process = LauncherProcess(output_dir, ENDLESS)
        try:
            process.until(lambda: completed_steps(output_dir) >= 2, "the first checkpoint")
            fill(disk)
            assert process.wait() == 1
        finally:
            process.close()
        said = process.err.splitlines()
        assert "no space" in said[-1].lower() and "Traceback" not in process.err, process.err
        saved = completed_steps(output_dir)
        assert saved >= 2
        enlarge(disk, "256m")
        status, words = run(output_dir, [*ENDLESS, f"finetune.max_train_steps={saved + 2}"])
        assert status == 0, words
        assert completed_steps(output_dir) == saved + 2
        assert reconcile(output_dir).adds_up
