"""The retrieval, the scoring or the model server is killed in the middle of a run.

Each death is repaired by the launcher while rollouts are retried or fail and are counted; the run goes on.
The fourth death of one server ends the run by its name, unless others do its work.
"""

import json

import psutil
import pytest

from pipelinerl.config import Job, load
from pipelinerl.run_state.accounting import Outcome
from tests.pipeline.conftest import LauncherProcess, Start, optimizer_steps
from tests.support.processes import command_line

RESTARTS = 3
STEPS_AFTER = 2
RUN = [
    "+domain=privacy_hopqa",
    "hardware=cpu",
    "privacy_hopqa.world.size=tiny",
    "privacy_hopqa.max_iterations=3",
    "privacy_hopqa.scoring_server_options=[]",
    "privacy_hopqa.max_examples=4",
    "finetune.max_train_steps=100000",
    "actor.max_failed_fraction=1",
]
SERVERS = {
    "services/retrieval": "retrieval_server",
    "services/scoring": "domains.privacy_hopqa.scorer",
    "actor_vllm_0": "pipelinerl.engines.cpu",
}


def kill(run: LauncherProcess, module: str, killed: set[int]) -> None:
    """Kill the server as soon as it runs again."""

    def next_ones() -> list[psutil.Process]:
        return [process for process in run.running(module) if process.pid not in killed]

    run.until(lambda: bool(next_ones()), f"the next start of {module}")
    for process in next_ones():
        killed.add(process.pid)
        process.kill()


def kill_starts(run: LauncherProcess, module: str, job: Job, times: int) -> None:
    """Kill the server of one job, and its next starts as soon as they are there."""
    killed = set[int]()

    def next_ones() -> list[psutil.Process]:
        servers = [one for one in run.running(module) if one.pid not in killed]
        return [server for server in servers if str(job.port) in command_line(server)]

    for _ in range(times):
        run.until(lambda: bool(next_ones()), f"the next start of {job.name}")
        for process in next_ones():
            killed.add(process.pid)
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("services/retrieval", []),
        ("services/retrieval", ["privacy_hopqa.helper_outage_s=0"]),
        ("services/scoring", []),
        ("actor_vllm_0", []),
    ],
)
def test_a_dead_server_is_restarted_three_times_and_then_named(
    start: Start, name: str, keys: list[str]
) -> None:
    run = start(*RUN, *keys)
    module, killed = SERVERS[name], set[int]()
    run.until(lambda: run.steps() >= 1, "the first step")
    for _ in range(RESTARTS):
        # Killed again before it is ready: the outage outlasts three retries of a request.
        kill(run, module, killed)
    before = run.steps()
    run.until(lambda: run.steps() >= before + STEPS_AFTER, "steps after the outage")
    kill(run, module, killed)

    assert run.wait() == 1
    assert len(run.err.splitlines()) == 1
    assert "killed by SIGKILL, after 3 restarts" in run.err
    assert run.err.startswith(name), run.err
    assert f"restart {RESTARTS} of {RESTARTS}" in run.out
    counts = run.counts()
    assert counts[Outcome.TRAINED] > 0
    reasons = {reason.partition(":")[0] for reason in counts.reasons.get(Outcome.FAILED, {})}
    # A group of which fewer than two rollouts are left is discarded with its last one.
    assert reasons <= {"group_discarded", "transport", "timeout"}, reasons
    if name == "services/scoring" or keys:
        assert "transport" in reasons
    elif name == "services/retrieval":
        assert "transport" not in reasons, "an outage shorter than helper_outage_s failed a rollout"


@pytest.mark.slow
def test_a_dead_replica_costs_no_rollout(start: Start) -> None:
    """One of two retrieval servers is killed until its last restart; no search may wait for it."""
    replicas = ("privacy_hopqa.retrieval_replicas=2", "privacy_hopqa.helper_outage_s=0")
    run = start(*RUN, *replicas, "finetune.max_train_steps=12")
    run.until(lambda: run.steps() >= 1, "the first step")
    first = load(run.output_dir).jobs_of("service")[0]
    assert first.name == "retrieval_0"
    kill_starts(run, "retrieval_server", first, RESTARTS)
    assert run.wait() == 0, run.err
    assert f"services/retrieval_0: killed by SIGKILL; restart {RESTARTS} of {RESTARTS}" in run.out
    counts = run.counts()
    assert counts[Outcome.TRAINED] > 0
    assert not [reason for reason in counts.reasons.get(Outcome.FAILED, {}) if "transport" in reason]


@pytest.mark.slow
def test_a_run_goes_on_without_an_engine_that_does_not_come_back_and_not_without_the_last(
    launch: Start,
) -> None:
    endless = ["finetune.max_train_steps=100000", "eval_every_n_versions=0", "eval_at_end=false"]
    run = launch("engine.count=2", "engine.max_restarts=1", *endless)
    run.until(lambda: run.steps() >= 2, "the second step")
    lost, last = load(run.output_dir).jobs_of("actor_llm")

    def said_by_the_roles() -> tuple[str | None, float]:
        """Engines that the actor does without, and how many the last update did without."""
        status = json.loads((run.output_dir / "actor" / "status.json").read_text())
        name = "weights/excluded_engines"
        left_out = [step[name] for step in optimizer_steps(run.output_dir) if name in step]
        return status.get("engines_out"), left_out[-1]

    kill_starts(run, SERVERS["actor_vllm_0"], lost, 2)
    told = run.output_dir / "launcher" / "lost_engines"
    run.until(lambda: told.read_text() == f"{lost.url}\n", "the launcher's word to the trainer")
    before = run.steps()
    run.until(lambda: run.steps() >= before + STEPS_AFTER, "steps without it")
    run.until(lambda: said_by_the_roles() == (lost.url, 1.0), "the word of actor and trainer")
    kill_starts(run, SERVERS["actor_vllm_0"], last, 2)

    assert run.wait() == 1
    (line,) = run.error_lines()
    assert line.startswith(f"{last.name}: killed by SIGKILL, after 1 restarts")
    assert f"{lost.name}: killed by SIGKILL, after 1 restarts" in run.out
    assert "the run goes on without it, 1 of 2 still serve (log: " in run.out
    assert "engines out of rotation: " in run.out
    assert run.counts()[Outcome.TRAINED] > 0
