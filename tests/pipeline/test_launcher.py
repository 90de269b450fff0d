"""A run completes, resumes, fails and stops in order, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pipelinerl.config import load
from pipelinerl.launcher.ports import is_free
from pipelinerl.run_state.accounting import reconcile
from pipelinerl.weights.wire import shared_directory
from tests.pipeline.conftest import LauncherProcess
from tests.support.metric_tables import check_run as check_metric_names

Launch = Callable[..., LauncherProcess]
ENDLESS = "finetune.max_train_steps=100000"
GONE_S = 30.0


def nothing_is_left(processes: list[psutil.Process], output_dir: Path) -> None:
    """Every process of the run ends, its ports are free again and so is its shared memory."""
    _, alive = psutil.wait_procs(processes, timeout=GONE_S)
    assert alive == []
    ports = [job.port for job in load(output_dir).jobs if job.port]
    assert ports
    end = time.monotonic() + GONE_S
    while not all(map(is_free, ports)):
        assert time.monotonic() < end, f"one of {ports} is still bound"
        time.sleep(0.05)
    while shared_directory(output_dir).exists():
        assert time.monotonic() < end, f"{shared_directory(output_dir)} is still there"
        time.sleep(0.05)


def texts_reached_the_trainer(output_dir: Path) -> bool:
    metrics = output_dir / "finetune" / "metrics.jsonl"
    return metrics.is_file() and b"completed_steps" in metrics.read_bytes()


def steps_of(output_dir: Path) -> int:
    return int(json.loads((output_dir / "finetune" / "summary.json").read_text())["completed_steps"])


@pytest.mark.timeout(600)
def test_a_run_completes_is_not_repeated_and_goes_on_when_asked_for_more(launch: Launch) -> None:
    first = launch("finetune.max_train_steps=2")
    assert first.wait() == 0, first.err
    run = first.output_dir
    assert steps_of(run) == 2
    counts = reconcile(run)
    assert counts.adds_up and counts.started > 0 and sum(counts.ends.values()) > 0
    assert counts.eval_started == 12
    check_metric_names(run)
    nothing_is_left(first.children(), run)

    again = launch("finetune.max_train_steps=2")
    assert again.wait() == 0, again.err
    assert "this run completed its 2 steps" in again.out
    assert reconcile(run) == counts

    more = launch("finetune.max_train_steps=4")
    assert more.wait() == 0, more.err
    assert steps_of(run) == 4
    assert load(run).attempt == 1 and (run / "streams_0").is_dir()
    later = reconcile(run)
    assert later.adds_up and later.started > counts.started

    over = launch("finetune.max_train_steps=1", "force_restart=true")
    assert over.wait() == 0, over.err
    assert steps_of(run) == 1 and not (run / "streams_0").exists() and load(run).attempt == 0


def test_a_killed_launcher_leaves_no_process_and_no_port(launch: Launch) -> None:
    run = launch(ENDLESS)
    run.until(lambda: texts_reached_the_trainer(run.output_dir), "the first step")
    children = run.children()
    names = " ".join(" ".join(process.cmdline()) for process in children)
    for module in ("pipelinerl.inference.embedded", "pipelinerl.actor", "pipelinerl.preprocess"):
        assert module in names
    run.send(signal.SIGKILL)
    nothing_is_left(children, run.output_dir)


def test_an_interrupted_run_stops_in_order_and_resumes(launch: Launch) -> None:
    run = launch(ENDLESS)
    run.until(lambda: texts_reached_the_trainer(run.output_dir), "the first step")
    children = run.children()
    run.send(signal.SIGTERM)
    assert run.wait() == 143
    assert run.err.splitlines() == ["launcher: stopped by SIGTERM; the same command resumes"]
    nothing_is_left(children, run.output_dir)


@pytest.mark.parametrize(
    "role", ["actor", *(pytest.param(role, marks=pytest.mark.slow) for role in ("finetune", "preprocess"))]
)
def test_the_death_of_a_role_ends_the_run_with_one_line_that_names_it(launch: Launch, role: str) -> None:
    run = launch(ENDLESS)
    run.until(lambda: texts_reached_the_trainer(run.output_dir), "the first step")
    children = run.children()
    victim = next(p for p in children if f"pipelinerl.{role}" in p.cmdline() and "--job" in p.cmdline())
    victim.kill()
    assert run.wait() == 1
    assert len(run.err.splitlines()) == 1
    assert run.err.startswith(f"{role}: killed by SIGKILL")
    nothing_is_left(children, run.output_dir)
