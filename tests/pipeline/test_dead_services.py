"""The retrieval, the scoring or the model server is killed in the middle of a run of the privacy agent.

Each death is repaired by the launcher while rollouts are retried or fail and are counted; the run goes on.
The fourth death of one server ends the run by its name.
"""

import psutil
import pytest

from pipelinerl.config import load
from pipelinerl.run_state.accounting import Outcome
from tests.pipeline.conftest import LauncherProcess, Start

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
    "actor_vllm_0": "pipelinerl.inference.embedded",
}


def kill(run: LauncherProcess, module: str, killed: set[int]) -> None:
    """Kill the server as soon as it runs again."""

    def next_ones() -> list[psutil.Process]:
        return [process for process in run.running(module) if process.pid not in killed]

    run.until(lambda: bool(next_ones()), f"the next start of {module}")
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
    killed = set[int]()

    def next_ones() -> list[psutil.Process]:
        servers = [one for one in run.running("retrieval_server") if one.pid not in killed]
        return [server for server in servers if str(first.port) in server.cmdline()]

    for _ in range(RESTARTS):
        run.until(lambda: bool(next_ones()), "the next start of the first replica")
        for process in next_ones():
            killed.add(process.pid)
            process.kill()
    assert run.wait() == 0, run.err
    assert f"services/retrieval_0: killed by SIGKILL; restart {RESTARTS} of {RESTARTS}" in run.out
    counts = run.counts()
    assert counts[Outcome.TRAINED] > 0
    assert not [reason for reason in counts.reasons.get(Outcome.FAILED, {}) if "transport" in reason]
