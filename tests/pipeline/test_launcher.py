"""A run resumes, fails and stops in order, and leaves nothing behind; `test_readme.py` completes one."""

import signal

import pytest

from pipelinerl.config import load
from tests.pipeline.conftest import LauncherProcess, Start

ENDLESS = "finetune.max_train_steps=100000"


def completed(run: LauncherProcess, steps: int) -> LauncherProcess:
    """It came to its end after so many steps in all."""
    assert run.wait() == 0, run.err
    assert run.summary()["completed_steps"] == steps
    return run


@pytest.mark.slow
def test_a_finished_run_goes_on_when_asked_for_more_and_begins_anew_by_force(launch: Start) -> None:
    first = completed(launch("finetune.max_train_steps=2"), 2)
    run, started = first.output_dir, first.counts().started

    more = completed(launch("finetune.max_train_steps=4"), 4)
    assert load(run).attempt == 1 and (run / "streams_0").is_dir()
    assert more.counts().started > started

    over = launch(ENDLESS, "force_restart=true")
    # Not before a trainer is there: until then the steps are those of the run that is removed.
    over.until(lambda: bool(over.running("pipelinerl.finetune")) and over.steps() > 0, "the first step")
    assert not (run / "streams_0").exists() and load(run).attempt == 0
    stops_in_order_when_interrupted(over)


def stops_in_order_when_interrupted(run: LauncherProcess) -> None:
    children = run.children()
    run.send(signal.SIGTERM)
    assert run.wait() == 143
    (line,) = run.error_lines()
    assert line.startswith("launcher: stopped by SIGTERM; the same command resumes at step ")
    run.leaves_nothing(children)


@pytest.mark.slow
def test_a_killed_launcher_leaves_no_process_and_no_port(launch: Start) -> None:
    run = launch(ENDLESS)
    run.until(lambda: run.steps() > 0, "the first step")
    children = run.children()
    for module in ("pipelinerl.engines.cpu", "pipelinerl.actor", "pipelinerl.preprocess"):
        assert run.running(module)
    run.send(signal.SIGKILL)
    run.leaves_nothing(children)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["actor", "finetune", "preprocess"])
def test_the_death_of_a_role_ends_the_run_with_one_line_that_names_it(launch: Start, role: str) -> None:
    run = launch(ENDLESS)
    run.until(lambda: run.steps() > 0, "the first step")
    children = run.children()
    run.running(f"pipelinerl.{role}")[0].kill()
    assert run.wait() == 1
    (line,) = run.error_lines()
    assert line.startswith(f"{role}: killed by SIGKILL")
    run.leaves_nothing(children)
