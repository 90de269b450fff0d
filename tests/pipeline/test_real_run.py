"""The privacy agent on its bundled model, all processes real: who runs, who asked whom, how old, how exact.

The run is endless and its learning rate is 0. Once it has trained on texts of several weight versions, the
trainer is held: the actor uses up its lag budget and rests. Then the actor is stopped while the launcher,
held too, keeps the services alive, so that everybody's counters can be compared with the actor's last
words. At the end the launcher is killed, and nothing is left.
"""

import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from pipelinerl.base.http import call
from pipelinerl.config import load
from pipelinerl.engines.client import parse_prometheus
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding
from pipelinerl.observe.history import read_metrics
from pipelinerl.rollouts import MASKED_TOKEN_ID
from pipelinerl.run_state.accounting import Outcome, RolloutCounts
from pipelinerl.run_state.announcements import TRAINER_TOPIC, WeightUpdateSuccess, parse_message
from pipelinerl.weights.parity import PROBE_SEQUENCES
from tests.pipeline.conftest import LauncherProcess, Start, optimizer_steps, records_of

TEXTS_PER_STEP, MAX_LAG, TEST_PROBLEMS = 16, 64, 4
STEPS = 6
RESTS_S = 2.0
"""An actor that has waited for the trainer so long has nothing left that it may start."""
RUN = [
    "+domain=privacy_hopqa",
    "privacy_hopqa.world.size=tiny",
    "privacy_hopqa.max_iterations=3",
    "privacy_hopqa.trace_fraction=1",
    f"privacy_hopqa.max_examples={TEST_PROBLEMS}",
    "finetune.learning_rate=0",
    "finetune.max_train_steps=100000",
    f"finetune.gradient_accumulation_passes={TEXTS_PER_STEP}",
    f"max_lag={MAX_LAG}",
    "weights.parity_every=0",
]
ROLES = [
    ("guard.py", "pipelinerl.finetune"),
    ("guard.py", "pipelinerl.launch"),
    ("pipelinerl.actor", "pipelinerl.launch"),
    ("pipelinerl.actor.worker", "pipelinerl.actor"),
    ("pipelinerl.finetune", "pipelinerl.launch"),
    ("pipelinerl.engines.cpu", "pipelinerl.launch"),
    ("pipelinerl.preprocess", "pipelinerl.launch"),
    ("retrieval_server", "pipelinerl.launch"),
]
"""Each process of the run beside its launcher, and who started it."""
WITH_TORCH = {"pipelinerl.engines.cpu", "pipelinerl.preprocess", "pipelinerl.finetune"}


def test_the_accounting_counters_ages_and_ratios_of_a_real_run_agree(start: Start) -> None:
    run = start(*RUN)
    output_dir = run.output_dir
    run.until(lambda: trained_across_versions(output_dir), "training on texts of several weight versions")
    processes = {program(process): process for process in run.children()}
    check_processes(processes, run)

    suspend_until_the_actor_rests(run, processes["pipelinerl.finetune"])
    run.send(signal.SIGSTOP)
    processes["pipelinerl.actor"].terminate()
    run.until(lambda: has_ended(processes["pipelinerl.actor"]), "the end of the actor")
    engine, retrieval = engine_counters(output_dir), retrieval_counters(output_dir)
    versions = announced_versions(output_dir)
    processes["pipelinerl.finetune"].resume()
    children = run.children()
    run.send(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    run.leaves_nothing(children)

    check_accounting(run.counts(), output_dir)
    check_engine_requests(engine, output_dir)
    check_searches(retrieval, output_dir)
    check_weight_updates(engine, versions)
    check_importance_ratios(output_dir)
    check_ages(output_dir)


def check_processes(processes: dict[str, psutil.Process], run: LauncherProcess) -> None:
    """Each role is a process of its own, and only those that compute hold torch in memory."""
    assert sorted((program(one), program(one.parent())) for one in run.children()) == sorted(ROLES)
    launcher = processes["pipelinerl.actor"].parent()
    assert launcher is not None
    everyone = [*processes.values(), launcher]
    assert {program(process) for process in everyone if holds_torch(process)} == WITH_TORCH


def check_accounting(counts: RolloutCounts, output_dir: Path) -> None:
    """Every rollout that ran is counted once, training and evaluation apart."""
    assert counts.eval_started == counts.eval_ends[Outcome.EVAL_DONE] == TEST_PROBLEMS
    assert counts[Outcome.TRAINED] > 0 and counts[Outcome.FAILED] == counts[Outcome.EMPTY] == 0
    announced = Counter(line["training"] for line in audit(output_dir) if line.get("event") == "rollout")
    finished = Counter(line["training"] for line in traces(output_dir))
    assert announced == finished == {True: counts.started, False: counts.eval_started}


def check_engine_requests(engine: dict[str, float], output_dir: Path) -> None:
    """The engine got each call of each rollout and the probes of the trainer, nothing else."""
    actor = actor_requests(output_dir)
    assert actor["sent"] == actor["completed"] == sum(len(trace["calls"]) for trace in traces(output_dir))
    probes = PROBE_SEQUENCES * sum("weights/parity_max_abs" in step for step in optimizer_steps(output_dir))
    assert probes > 0
    assert engine["pipelinerl:requests_received_total"] == actor["sent"] + probes
    assert engine["vllm:request_success_total"] == actor["completed"] + probes


def check_searches(retrieval: dict[str, Any], output_dir: Path) -> None:
    """The retrieval server got each search of each rollout; those that left the machine are all audited."""
    searches: Counter[str] = Counter()
    for trace in traces(output_dir):
        searches.update(trace["searches"])
    assert searches["local"] > 0 and searches["web"] > 0
    assert retrieval["/local/search"] == answered(searches["local"])
    assert retrieval["/browsecomp/search"] == answered(searches["web"])
    assert sum("query" in line for line in audit(output_dir)) == searches["web"]


def answered(requests: int) -> dict[str, Any]:
    return {"received": requests, "by_status": {"200": requests}}


def check_weight_updates(engine: dict[str, float], versions: list[int]) -> None:
    """Each version that was announced is an update that the engine took."""
    assert len(versions) >= STEPS
    assert versions == [number * TEXTS_PER_STEP for number in range(len(versions))]
    name = "vllm:rl_weight_update_operation_duration_seconds_count"
    (updates,) = [n for key, n in engine.items() if key.startswith(name) and 'operation="update"' in key]
    # The trainer may have been held after the engine's last answer and before its announcement.
    assert updates - len(versions) in (0, 1)


def check_importance_ratios(output_dir: Path) -> None:
    """Nothing was learned, so the trainer gives each token the probability with which it was sampled."""
    for step in optimizer_steps(output_dir):
        assert step["rl/num_output_tokens_sum"] > 0
        assert abs(step["rl/max_ratio_new_old"] - 1) < 1e-3
        assert abs(step["rl/min_ratio_new_old"] - 1) < 1e-3


def check_ages(output_dir: Path) -> None:
    """The trainer's account of ages is that of its input, and no token beyond the bound was trained."""
    stale, oldest = 0, 0
    logged = optimizer_steps(output_dir)
    for step, lags in zip(logged, lags_by_step(output_dir, len(logged))):
        fresh = lags[lags <= MAX_LAG]
        stale, oldest = stale + len(lags) - len(fresh), max(oldest, fresh.max(initial=0))
        assert step["rl/num_output_tokens_sum"] == len(lags)
        assert step["stats/tokens_too_old_to_train"] == stale
        assert step.get("stats/lag_max", 0) == fresh.max(initial=0) <= MAX_LAG
        assert sum(step.get("stats/lag_histogram", {"counts": []})["counts"]) == len(fresh)
    assert oldest >= TEXTS_PER_STEP, "no trained token was older than an update; the bound was not tested"


def lags_by_step(output_dir: Path, count: int) -> list[np.ndarray]:
    """Ages in texts of the labelled tokens of each step, from the stream that the trainer read."""
    ages: list[list[np.ndarray]] = [[] for _ in range(count)]
    for batch in map(PipelineBatchEncoding.from_record, records_of(output_dir, "training_data")):
        if batch.step < count:
            labelled = (batch.labels[0] != MASKED_TOKEN_ID) & (batch.position_ids[0] > 0)
            ages[batch.step].append(batch.step * TEXTS_PER_STEP - batch.token_versions[0][labelled])
    return [np.concatenate(step) for step in ages]


def announced_versions(output_dir: Path) -> list[int]:
    messages = map(parse_message, records_of(output_dir, TRAINER_TOPIC))
    return [message.version for message in messages if isinstance(message, WeightUpdateSuccess)]


def trained_across_versions(output_dir: Path) -> bool:
    logged = optimizer_steps(output_dir)
    return len(logged) >= STEPS and any(step["stats/multi_version_share"] > 0 for step in logged)


def suspend_until_the_actor_rests(run: LauncherProcess, trainer: psutil.Process) -> None:
    """Hold the trainer, not in the middle of a publication, until the actor waits for it and nothing runs."""
    held_since = 0.0

    def hold() -> None:
        nonlocal held_since
        trainer.suspend()
        held_since = time.time()

    def rests() -> bool:
        if json.loads(get(run.output_dir, "actor_llm", "/is_paused"))["is_paused"]:
            trainer.resume()
            time.sleep(0.05)
            hold()
        status = json.loads((run.output_dir / "actor" / "status.json").read_text())
        waited = max((w["waited_s"] for w in status["waits"] if "from the trainer" in w["name"]), default=0)
        return waited >= RESTS_S and status["time"] - held_since >= RESTS_S

    hold()
    run.until(rests, "the actor's rest")


def program(process: psutil.Process | None) -> str:
    """The module or script that a Python process runs."""
    words = process.cmdline() if process is not None else []
    if "-m" in words:
        return words[words.index("-m") + 1]
    return next((Path(word).name for word in words if word.endswith(".py")), " ".join(words))


def holds_torch(process: psutil.Process) -> bool:
    return any("libtorch" in mapped.path for mapped in process.memory_maps())


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def get(output_dir: Path, kind: str, path: str) -> bytes:
    """What the only server of a kind answers."""
    (job,) = load(output_dir).jobs_of(kind)
    return call("GET", job.url, path, 30.0)


def engine_counters(output_dir: Path) -> dict[str, float]:
    return parse_prometheus(get(output_dir, "actor_llm", "/metrics").decode())


def retrieval_counters(output_dir: Path) -> dict[str, Any]:
    requests: dict[str, Any] = json.loads(get(output_dir, "service", "/health"))["requests"]
    return requests


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in folder.iterdir() for line in path.read_text().splitlines()]


def audit(output_dir: Path) -> list[dict[str, Any]]:
    return lines_of(output_dir / "audit")


def traces(output_dir: Path) -> list[dict[str, Any]]:
    return lines_of(output_dir / "traces")


def actor_requests(output_dir: Path) -> dict[str, float]:
    """The actor's own totals, from its last record."""
    last = read_metrics(output_dir, "actor")[-1]
    return {name.rpartition("/")[2]: n for name, n in last.items() if name.startswith("actor/requests/")}
