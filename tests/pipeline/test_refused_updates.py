"""An engine refuses an update: for good the run ends at once, otherwise the engine is started again."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from pipelinerl.base.faults import FAULT, FOLDER
from tests.pipeline.conftest import Start

SHORT = ["finetune.max_train_steps=3", "eval_every_n_versions=0", "eval_at_end=false"]


def fault(folder: Path, value: str) -> Mapping[str, str]:
    folder.mkdir()
    return {FAULT: value, FOLDER: str(folder)}


@pytest.mark.slow
def test_an_update_that_no_restart_mends_ends_the_run_by_name_and_restarts_nothing(
    launch: Start, tmp_path: Path
) -> None:
    run = launch(*SHORT, env=fault(tmp_path / "fault", "engine:mid_update:no_memory"))
    assert run.wait() == 1
    (line,) = run.error_lines()
    assert line.startswith(
        "finetune: exit status 1: finetune: WeightUpdateError: weight update failed at update of"
    )
    assert "the host has no memory for a second copy of the weights" in line and "lower engine.count" in line
    assert "permanent" not in line and "{" not in line
    assert "; restart " not in run.out and run.out.count("actor_vllm_0 started") == 1
    asked = run.output_dir / "finetune" / "broken_engines.jsonl"
    assert not asked.exists() or not asked.read_bytes(), "nobody asked for another engine"
    assert not run.children()


@pytest.mark.slow
def test_a_refusal_that_a_new_process_repeats_ends_the_run_after_one_restart(
    launch: Start, tmp_path: Path
) -> None:
    run = launch(*SHORT, env=fault(tmp_path / "fault", "engine:mid_update:full_disk"))
    assert run.wait() == 1
    (line,) = run.error_lines()
    assert "weight update failed at update of" in line and "a new process of the engine refused it" in line
    assert "restart 1 of 3" in run.out and "restart 2 of 3" not in run.out


@pytest.mark.slow
def test_an_engine_that_is_killed_in_an_update_is_started_again(launch: Start, tmp_path: Path) -> None:
    run = launch(*SHORT, env=fault(tmp_path / "fault", "engine:mid_update:kill:2"))
    assert run.wait() == 0, run.err
    assert "actor_vllm_0: killed by SIGKILL; restart 1 of 3" in run.out
    assert run.summary()["completed_steps"] == 3 and run.counts().adds_up
