"""Runs that are killed and started again: bit for bit where that is promised, every rollout counted."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipelinerl.finetune.rl.batch import PipelineBatchEncoding
from pipelinerl.observe.history import read_metrics
from pipelinerl.rollouts import MASKED_TOKEN_ID
from pipelinerl.run_state.accounting import Outcome
from tests.pipeline.conftest import DEADLINE_S, LauncherProcess, Start, records_of

STEPS = 6
COMMON = [
    "+domain=guessing",
    f"finetune.max_train_steps={STEPS}",
    "finetune.save_checkpoint_steps=2",
    "finetune.keep_intermediate_checkpoints=false",
    "finetune.learning_rate=1e-3",
    "weights.parity_every=0",
    "eval_every_n_versions=0",
    "eval_at_end=false",
]
SYNCHRONOUS_TEXTS = 48
SYNCHRONOUS = [
    "max_lag=0",
    "actor.llm_max_rollouts=1",
    "engine.max_prefill_tokens=256",
    f"finetune.gradient_accumulation_passes={SYNCHRONOUS_TEXTS}",
]
PASSES = "finetune.gradient_accumulation_passes"
CLOCK = ("time", "throughput/", "weights/", "stats/time_waiting_for_data", "stats/queue/")

MAX_LAG, TEXTS = 64, 16
ASYNCHRONOUS = [f"max_lag={MAX_LAG}", f"finetune.gradient_accumulation_passes={TEXTS}"]


def metrics(output_dir: Path) -> dict[int, dict[str, Any]]:
    """The trainer's records by step, the later one of a step made twice; nothing that the clock decides."""
    return {
        int(row["step"]): {name: value for name, value in row.items() if not name.startswith(CLOCK)}
        for row in read_metrics(output_dir, "finetune", undone=True)
    }


def kill_after(run: LauncherProcess, steps: int) -> None:
    """kill -9 of the launcher, which takes everything with it, after so many new steps of the trainer."""
    before = len(metrics(run.output_dir))
    run.until(lambda: len(metrics(run.output_dir)) >= before + steps, f"{steps} steps")
    run.send(signal.SIGKILL)
    run.wait()
    for process in run.children():
        process.wait(DEADLINE_S)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("weights.lora=adapter", "finetune.lora.enabled=true")])
def test_a_synchronous_run_that_was_killed_ends_bit_for_bit_as_one_that_was_not(
    start: Start, more: tuple[str, ...]
) -> None:
    """Also where adapters travel alone, as one whose engine is sent merged weights."""
    merged = [one.replace("lora=adapter", "lora=merged") for one in more]
    straight = start(*COMMON, *SYNCHRONOUS, *merged, name="straight")
    assert straight.wait() == 0, straight.err
    first = start(*COMMON, *SYNCHRONOUS, *more)
    kill_after(first, 3)
    again = start(*COMMON, *SYNCHRONOUS, *more)
    assert again.wait() == 0, again.err

    one, two = straight.output_dir, again.output_dir
    assert metrics(one).keys() == metrics(two).keys() and len(metrics(one)) == STEPS
    for step, row in metrics(one).items():
        assert row == metrics(two)[step], f"step {step}"
        assert row["stats/lag_max"] == 0, "each step was sampled by the weights that the step before left"
        assert row["stats/min_actor_version"] == row["stats/max_actor_version"] == step - SYNCHRONOUS_TEXTS
    for name in ("current/model.safetensors", "training_state/tensors.safetensors"):
        expected, found = load_file(one / "finetune" / name), load_file(two / "finetune" / name)
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[key], found[key]) for key in expected), name
    counts = again.counts()
    assert counts.resumes == 1 and counts.undone > 0
    assert counts[Outcome.TRAINED] == straight.counts()[Outcome.TRAINED]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then", "total"), [(32, 8, 160), (8, 32, 160)])
def test_a_resume_may_have_steps_of_another_size(start: Start, first: int, then: int, total: int) -> None:
    """The smaller steps of all eight would have fewer texts than the first four have trained."""
    begun = start(*COMMON, "max_lag=64", f"{PASSES}={first}", "finetune.max_train_steps=4")
    assert begun.wait() == 0, begun.err
    again = start(*COMMON, "max_lag=64", f"{PASSES}={then}", "finetune.max_train_steps=8")
    assert again.wait() == 0, again.err
    made = [step * first for step in range(1, 5)]
    assert sorted(metrics(again.output_dir)) == [*made, *(made[-1] + step * then for step in range(1, 5))]
    assert f"trained {total} of {total} samples" in again.out and "step 8 (100%)" in again.out


def tokens_by_lag(output_dir: Path) -> dict[int, dict[int, int]]:
    """Labelled tokens of each step of the last start, by their age when the step was trained."""
    found: dict[int, dict[int, int]] = {}
    for batch in map(PipelineBatchEncoding.from_record, records_of(output_dir, "training_data")):
        ages = found.setdefault(batch.step, {})
        labelled = batch.labels[0] != MASKED_TOKEN_ID
        for version in batch.token_versions[0][labelled].tolist():
            age = batch.step * TEXTS - version
            ages[age] = ages.get(age, 0) + 1
    return found


@pytest.mark.slow
def test_an_asynchronous_run_that_was_killed_twice_counts_everything_and_trains_nothing_too_old(
    start: Start,
) -> None:
    for _ in range(2):
        killed = start(*COMMON, *ASYNCHRONOUS, "finetune.max_train_steps=1000")
        kill_after(killed, 3)
    run, steps = killed.output_dir, len(metrics(killed.output_dir)) + 3
    last = start(*COMMON, *ASYNCHRONOUS, f"finetune.max_train_steps={steps}")
    assert last.wait() == 0, last.err
    counts = last.counts()
    assert counts.resumes == 2
    assert counts[Outcome.TRAINED] > 0 and counts.started == sum(counts.ends.values()) + counts.unfinished
    assert counts.discarded <= counts.unfinished
    assert "resumed 2 times: " in last.out

    summary = last.summary()
    assert (summary["completed_steps"], summary["samples"]) == (steps, steps * TEXTS)
    made = tokens_by_lag(run)
    first = min(made)
    assert set(made) >= set(range(first, steps))
    rows = metrics(run)
    for step in range(first, steps):
        row = rows[(step + 1) * TEXTS]
        fresh = sum(n for age, n in made[step].items() if 0 <= age <= MAX_LAG)
        assert sum(row["stats/lag_histogram"]["counts"]) == fresh, f"step {step}: {made[step]}"
        assert row["stats/lag_max"] == max(age for age in made[step] if age <= MAX_LAG)
