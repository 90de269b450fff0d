"""One run over several hosts on Ray: namespaces of this machine, connected by a bridge."""

import contextlib
import hashlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file, save_file

from pipelinerl.config import load
from pipelinerl.launcher.ray_head import ASK_EVERY_S, LEAVE_S, SILENT_S
from pipelinerl.launcher.supervision.spec import ABANDONED_AFTER_S
from pipelinerl.run_state.accounting import Outcome
from tests.pipeline.conftest import LauncherProcess, Start
from tests.support.network_hosts import NetworkHost, NetworkHosts, why_not

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not())]
NAMED_S = 30.0
"""A host that is gone is named within so many seconds."""
HEAD_S = SILENT_S + ASK_EVERY_S + LEAVE_S
"""Until the silence of Ray's head is named, and the cluster left."""
ON_RAY = ["world.backend=ray"]
UNEVALUATED = ["eval_every_n_versions=0", "eval_at_end=false"]
ENDLESS = "finetune.max_train_steps=5000"
Cluster = Callable[..., list[NetworkHost]]
ASKS_RAY = """
from importlib.metadata import version
from pathlib import Path
import sys
from pipelinerl.base.errors import ConfigError
from pipelinerl.config.machine import WorldConfig
from pipelinerl.launcher import ray_backend
from pipelinerl.launcher.ray_backend import RayBackend, software
with RayBackend(WorldConfig(backend="ray"), 1, 60.0) as backend:
    for host in backend.hosts:
        print(host.rank, host.address, host.devices, host.interface)
    print(backend.free(1, 9000), backend.free(1, 9000), backend.free(0, 9001))
    backend.check_paths(Path(sys.argv[1]), [])
    for folder, path in ((sys.argv[1], "/no/such/model"), ("/dev/shm", sys.argv[1])):
        try:
            backend.check_paths(Path(folder), [path])
        except ConfigError as error:
            print(error)
ray_backend.software = lambda: {**software(), "torch": "1.0"}
try:
    RayBackend(WorldConfig(backend="ray"), 1, 60.0)
except ConfigError as error:
    print(str(error).replace(version("torch"), "2"))
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Starts so many hosts."""
    started: list[NetworkHosts] = []

    def begin(count: int, gpus: int = 0) -> list[NetworkHost]:
        started.append(NetworkHosts(count, gpus).__enter__())
        return started[-1].hosts

    yield begin
    for network in started:
        network.__exit__()


def of_run(host: NetworkHost) -> list[psutil.Process]:
    """Processes on a host that work for the run, guards and agents among them."""
    found = []
    for process in host.processes():
        with contextlib.suppress(psutil.Error):
            works = any(
                word.startswith(("pipelinerl.", "ray::_Agent")) or "/pipelinerl/" in word
                for word in process.cmdline()
            )
            if works and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def nothing_left(hosts: list[NetworkHost], deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while left := [one.cmdline() for host in hosts for one in of_run(host)]:
        assert time.monotonic() < end, left
        time.sleep(0.2)


def begun(launch: Start, hosts: list[NetworkHost], *more: str) -> LauncherProcess:
    """A run in its second step."""
    run = launch(*ON_RAY, *more, command=hosts[0].command)
    run.until(lambda: run.steps() >= 2, "the second step")
    return run


def test_a_run_over_two_hosts_completes(launch: Start, cluster: Cluster) -> None:
    hosts = cluster(2)
    run = launch(*ON_RAY, "finetune.max_train_steps=2", *UNEVALUATED, command=hosts[0].command)
    assert run.wait() == 0, run.err
    assert run.steps() == 2 and run.counts().ends
    engine = load(run.output_dir).jobs_of("actor_llm")[0]
    assert (engine.node_rank, engine.hostname) == (1, hosts[1].address)
    nothing_left(hosts, 5.0)


@pytest.mark.slow
def test_the_privacy_agent_trains_over_three_hosts_with_a_retrieval_server_on_each(
    start: Start, cluster: Cluster
) -> None:
    hosts = cluster(3)
    agent = ["+domain=privacy_hopqa", "hardware=cpu", "privacy_hopqa.world.size=tiny"]
    agent += ["privacy_hopqa.retrieval_replicas=3", "world.actor_hosts=1", "finetune.max_train_steps=2"]
    run = start(*ON_RAY, *agent, *UNEVALUATED, command=hosts[0].command)
    assert run.wait() == 0, run.err
    # A server that refused the token would fail every rollout that asks it.
    assert run.steps() == 2 and run.counts().ends.get(Outcome.FAILED, 0) == 0
    servers = [job for job in load(run.output_dir).jobs_of("service") if "retrieval" in job.name]
    addresses = ["127.0.0.1", hosts[1].address, hosts[2].address]
    assert [(job.node_rank, job.hostname) for job in servers] == list(enumerate(addresses))
    nothing_left(hosts, 5.0)


@pytest.mark.slow
def test_ray_gives_devices_and_each_host_is_asked_for_ports_and_paths(
    cluster: Cluster, tmp_path: Path
) -> None:
    first, second = cluster(2, gpus=2)
    asked = first.command(sys.executable, "-c", ASKS_RAY, str(tmp_path))
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120)
    other = f"host 1 ({second.name}, {second.address})"
    assert done.stdout.splitlines() == [
        f"0 {first.address} ('0',) eth0",
        f"1 {second.address} ('0',) eth0",
        "True False True",
        f"{other}: has no /no/such/model; every host needs it at the same path",
        f"output_dir=/dev/shm: {other} does not see it, or may not write there; give a folder that all hosts "
        "share",
        f"{other}: torch is 2 there and 1.0 with the launcher; every host needs the same",
    ], done.stderr


@pytest.mark.slow
def test_a_run_over_three_hosts_completes_with_trainer_ranks_on_two(launch: Start, cluster: Cluster) -> None:
    hosts = cluster(3)
    run = launch(*ON_RAY, "world.actor_hosts=1", "finetune.max_train_steps=3", command=hosts[0].command)
    assert run.wait() == 0, run.err
    assert run.steps() == 3
    run.counts()
    places = {job.name: (job.node_rank, job.hostname) for job in load(run.output_dir).jobs}
    assert [places[name][0] for name in ("actor", "finetune", "finetune_1", "actor_vllm_0")] == [0, 0, 1, 2]
    assert places["actor_vllm_0"][1] == hosts[2].address
    assert (run.output_dir / "finetune_1" / "heartbeat").exists()
    nothing_left(hosts, 5.0)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["", "evaluate"])
def test_a_host_with_another_model_at_the_same_path_is_refused_by_name(
    mode: str, launch: Start, cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    """An engine alone is there: trainer ranks compare what they loaded, engines may get no weights."""
    hosts = cluster(2)
    other = shutil.copytree(model, tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    save_file({name: one * 1.01 for name, one in tensors.items()}, other / "model.safetensors")
    hosts[1].put(other, model)
    run = launch(*ON_RAY, *([f"debug.mode={mode}"] if mode else []), command=hosts[0].command)
    assert run.wait() == 2
    where = f"host 1 ({hosts[1].name}, {hosts[1].address}): {model} is another model there"
    assert where in run.err, run.err
    nothing_left(hosts, 5.0)


@pytest.mark.slow
def test_two_hosts_give_the_bits_of_one(launch: Start, cluster: Cluster) -> None:
    exact = ["max_lag=0", "actor.llm_max_rollouts=1", "engine.max_prefill_tokens=256"]
    exact += ["finetune.max_train_steps=3", "finetune.gradient_accumulation_passes=48"]
    hosts = cluster(2)
    two = launch(*ON_RAY, *exact, name="two", command=hosts[0].command)
    assert two.wait() == 0, two.err
    one = launch(*exact, name="one")
    assert one.wait() == 0, one.err
    assert load(two.output_dir).jobs_of("actor_llm")[0].node_rank == 1
    assert digest(one.output_dir) == digest(two.output_dir)
    assert one.counts().ends == two.counts().ends


def digest(output_dir: Path) -> str:
    (model,) = (output_dir / "finetune" / "current").glob("*.safetensors")
    return hashlib.sha256(model.read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "cut"])
def test_the_run_goes_on_without_a_host_and_a_killed_launcher_leaves_nothing_on_any(
    fault: str, launch: Start, cluster: Cluster
) -> None:
    hosts = cluster(3)
    run = begun(launch, hosts, "engine.count=2", ENDLESS)
    struck, steps = time.monotonic(), run.steps()
    getattr(hosts[2], fault)()
    run.until(lambda: "goes on without actor_vllm_0" in said(run), "the word about the engine")
    assert time.monotonic() - struck < NAMED_S
    known = run.steps()
    run.until(lambda: run.steps() >= max(known, steps) + 3, "three more steps")
    assert of_run(hosts[1])
    (launcher,) = psutil.Process(run.pid).children()  # `nsenter` runs it as its child
    launcher.kill()
    nothing_left(hosts[:2] if fault == "kill" else hosts, NAMED_S)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "cut"])
def test_the_host_of_the_only_engine_ends_the_run_by_name(
    fault: str, launch: Start, cluster: Cluster
) -> None:
    hosts = cluster(2)
    run = begun(launch, hosts, ENDLESS)
    struck = time.monotonic()
    getattr(hosts[1], fault)()
    assert run.wait() == 1
    assert time.monotonic() - struck < NAMED_S + 15.0  # the others are stopped in between
    assert "actor_vllm_0: host 1" in run.err and "is lost" in run.err, run.err
    run.counts()
    # On the side that was cut off nobody polls: its agent ends everything by itself.
    nothing_left(hosts[:1] if fault == "kill" else hosts, ABANDONED_AFTER_S + 5.0)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_head_of_the_cluster_that_is_gone_or_stands_still_ends_the_run_by_name(
    fault: signal.Signals, launch: Start, cluster: Cluster
) -> None:
    hosts = cluster(2)
    run = begun(launch, hosts, ENDLESS)
    (head,) = [one for one in hosts[0].processes() if one.name() == "gcs_server"]
    struck = time.monotonic()
    head.send_signal(fault)
    assert run.wait() == 1
    assert time.monotonic() - struck < HEAD_S + NAMED_S
    assert "for an answer of the head of the Ray cluster" in run.err, run.err
    run.counts()
    nothing_left(hosts, ABANDONED_AFTER_S + 5.0)


@pytest.mark.slow
def test_a_launcher_that_is_stopped_for_longer_than_others_wait_says_so(
    launch: Start, cluster: Cluster
) -> None:
    """As after Ctrl-Z and fg: rank 0 then ends because its peer has, and may be the first to be told."""
    hosts = cluster(3)
    run = begun(launch, hosts, "world.actor_hosts=1", ENDLESS, *UNEVALUATED)
    (launcher,) = psutil.Process(run.pid).children()
    launcher.suspend()
    try:
        nothing_left(hosts[1:], ABANDONED_AFTER_S + NAMED_S)
    finally:
        launcher.resume()
        psutil.Process(run.pid).resume()  # `nsenter` stops itself with its child
    assert run.wait() == 1
    assert "the launcher itself stood still for " in run.err, run.err
    nothing_left(hosts, 5.0)


@pytest.mark.slow
def test_the_death_of_redis_ends_the_run_by_name(launch: Start, cluster: Cluster) -> None:
    hosts = cluster(2)
    run = begun(launch, hosts, ENDLESS)
    (server,) = [one for one in hosts[0].processes() if one.name() == "redis-server"]
    server.kill()
    assert run.wait() == 1
    assert "redis" in run.err, run.err
    nothing_left(hosts, NAMED_S)


def said(run: LauncherProcess) -> str:
    """What the launcher has logged."""
    return "".join(path.read_text() for path in (run.output_dir / "launcher").glob("*.log"))
