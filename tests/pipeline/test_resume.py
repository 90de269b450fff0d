"""Runs that are killed and started again: bit for bit where that is promised, honest books everywhere."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipelinerl.accounting import Outcome, reconcile
from tests.pipeline.conftest import LauncherProcess

STEPS = 6
COMMON = [
    "+domain=guessing",
    f"finetune.max_train_steps={STEPS}",
    "finetune.save_checkpoint_steps=2",
    "finetune.keep_intermediate_checkpoints=false",
    "finetune.attempts=4",
    "finetune.learning_rate=1e-3",
    "weights.parity_every=0",
    "eval_every_n_versions=0",
    "eval_at_end=false",
    "wandb.use_wandb=false",
]
SYNCHRONOUS = [
    "max_lag=0",
    "actor.llm_max_rollouts=1",
    "engine.max_prefill_tokens=256",
    "finetune.gradient_accumulation_passes=10",
]
CLOCK = ("time", "throughput/", "weights/", "stats/time_waiting_for_data")

Start = Callable[..., LauncherProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts guessing runs with the domain's own small model in a named folder."""
    started: list[LauncherProcess] = []

    def run(name: str, *overrides: str) -> LauncherProcess:
        started.append(LauncherProcess(tmp_path / name, [*COMMON, *overrides]))
        return started[-1]

    yield run
    for process in started:
        process.close()


def metrics(output_dir: Path) -> dict[int, dict[str, Any]]:
    """The trainer's records by step, the later one of a step made twice; nothing that the clock decides."""
    path = output_dir / "finetune" / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return {
        int(row["step"]): {name: value for name, value in row.items() if not name.startswith(CLOCK)}
        for row in rows
    }


def kill_after(run: LauncherProcess, steps: int) -> None:
    """kill -9 of the launcher, which takes everything with it, when the trainer has made so many steps."""
    run.until(lambda: len(metrics(run.output_dir)) >= steps, f"step {steps}")
    run.send(signal.SIGKILL)
    run.wait()
    for process in run.children():
        process.wait(30)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_synchronous_run_that_was_killed_ends_bit_for_bit_as_one_that_was_not(start: Start) -> None:
    straight = start("straight", *SYNCHRONOUS)
    assert straight.wait() == 0, straight.err
    first = start("killed", *SYNCHRONOUS)
    kill_after(first, 3)
    again = start("killed", *SYNCHRONOUS)
    assert again.wait() == 0, again.err

    one, two = straight.output_dir, again.output_dir
    assert metrics(one).keys() == metrics(two).keys() and len(metrics(one)) == STEPS
    for step, row in metrics(one).items():
        assert row == metrics(two)[step], f"step {step}"
    for name in ("current/model.safetensors", "training_state/tensors.safetensors"):
        expected, found = load_file(one / "finetune" / name), load_file(two / "finetune" / name)
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[key], found[key]) for key in expected), name
    counts = reconcile(two)
    assert counts.adds_up and counts.resumes == 1 and counts.undone > 0
    assert counts[Outcome.TRAINED] == reconcile(one)[Outcome.TRAINED]
