"""Which process goes to which of several hosts, what is refused there, and what a dry run shows."""

import re
import sys
from pathlib import Path

import pytest

from pipelinerl.config import Config, ConfigError, compose, load
from pipelinerl.config.hosts import imagined_hosts
from pipelinerl.launcher.checks import several_hosts
from pipelinerl.launcher.commands import commands
from pipelinerl.launcher.placement import derive, place
from tests.unit.launcher.conftest import ON_GPUS, DryRun, Placed, Refused

RAY = ("world.backend=ray", "streams=redis")
CPU = {"hardware": {"kind": "cpu"}, "engine": {"kind": "embedded", "count": 2}}


def placed_on(sizes: list[int], **groups: object) -> tuple[dict[str, tuple[int, list[int]]], int]:
    """Host and GPUs of engines, references and trainer on hosts of these sizes; the trainer's ranks."""
    cfg = Config.model_validate(groups)
    hosts = [imagined_hosts(len(sizes), list("0123")[:size])[rank] for rank, size in enumerate(sizes)]
    jobs = place(cfg, hosts, [], lambda host, port: True)
    assert {job.hostname for job in jobs if job.node_rank == 1} <= {hosts[-1].address, "192.0.2.2"}
    shown = {job.name: (job.node_rank, job.gpus) for job in jobs if job.kind != "preprocessor"}
    return shown, derive(cfg, jobs).trainer_ranks


def world(actor: int, finetune: int, **more: int | None) -> dict[str, object]:
    return {"world": {"actor_fraction": actor, "finetune_fraction": finetune, **more}}


TWO = {"vllm_config": {"vllm_kwargs": {"tensor-parallel-size": 2}}}
THREE = {"vllm_config": {"vllm_kwargs": {"tensor-parallel-size": 3}}}


@pytest.mark.parametrize(
    ("sizes", "groups", "engines", "trainer"),
    [
        ([2, 2], world(4, 4), [(1, [0]), (1, [1])], [(0, [0, 1])]),
        ([2, 2], world(1, 3), [(1, [0])], "unequal"),
        ([4, 4], world(6, 2) | TWO, [(1, [0, 1]), (1, [2, 3]), (0, [0, 1])], [(0, [2, 3])]),
        ([0, 2, 2], world(4, 4), [(2, [0]), (2, [1])], [(1, [0, 1])]),
        ([2, 2, 2], world(4, 4), [(2, [0]), (2, [1]), (1, [0])], "unequal"),
        ([2, 2, 2], world(4, 4, actor_hosts=1), [(2, [0]), (2, [1])], [(0, [0, 1]), (1, [0, 1])]),
        ([2, 2, 2, 2], world(2, 6), [(3, [0]), (3, [1])], [(0, [0, 1]), (1, [0, 1]), (2, [0, 1])]),
        ([4, 4], world(4, 4, actor_hosts=1) | THREE, [(1, [0, 1, 2])], [(0, [0, 1, 2, 3])]),
        ([1, 1], world(4, 4), [(1, [0])], [(0, [0])]),
        ([2], world(4, 4), [(0, [0])], [(0, [1])]),
    ],
)
def test_engines_fill_hosts_from_the_last_one_and_the_trainer_gets_the_rest(
    sizes: list[int],
    groups: dict[str, object],
    engines: list[tuple[int, list[int]]],
    trainer: list[tuple[int, list[int]]] | str,
) -> None:
    if trainer == "unequal":
        with pytest.raises(ConfigError, match=r"equal in number on each host, not ") as refused:
            placed_on(sizes, **groups)
        found = re.search(r"set world\.actor_hosts=(\d+), ", str(refused.value))
        assert found, "the remedy has its number"
        more = {"world": {**groups["world"], "actor_hosts": int(found[1])}}  # type: ignore[dict-item]
        assert placed_on(sizes, **{**groups, **more})[1] > 0, "with which the run is placed"
        return
    jobs, ranks = placed_on(sizes, **groups)
    assert [jobs[name] for name in jobs if name.startswith("actor_vllm")] == engines
    assert [jobs[name] for name in jobs if name.startswith("finetune")] == trainer
    assert jobs["actor"][0] == 0 and ranks == sum(len(gpus) for _, gpus in trainer if isinstance(gpus, list))


@pytest.mark.parametrize(
    ("hosts", "actor_hosts", "engines", "trainer"),
    [
        (1, None, [0, 0], [0]),
        (2, None, [1, 1], [0]),
        (3, None, [2, 1], [0]),
        (3, 1, [2, 2], [0, 1]),
        (2, 0, [1, 0], [0, 1]),
        (4, 2, [3, 2], [0, 1]),
    ],
)
def test_on_cpus_a_trainer_rank_is_on_each_host_that_is_not_for_engines(
    hosts: int, actor_hosts: int | None, engines: list[int], trainer: list[int]
) -> None:
    jobs, ranks = placed_on([0] * hosts, **CPU, world={"actor_hosts": actor_hosts})
    assert [host for name, (host, _) in jobs.items() if name.startswith("actor_vllm")] == engines
    assert [host for name, (host, _) in jobs.items() if name.startswith("finetune")] == trainer
    assert ranks == len(trainer)


@pytest.mark.parametrize(
    ("sizes", "groups", "said"),
    [
        ([2, 2], THREE, "an engine of 3 GPUs (tensor x pipeline x data) is larger than a host (2)"),
        ([2, 2], world(4, 4, actor_hosts=2), "leaves none of 2 hosts for the trainer; set at most 1"),
        ([2, 2], world(4, 4, actor_hosts=0), "leaves no GPU for engines"),
        ([3, 3, 3], world(8, 1) | TWO, "4 engines of 2 GPUs do not fit, 3 do"),
        ([0, 0], CPU | {"world": {"actor_hosts": 2}}, "leaves none of 2 hosts for the trainer"),
        (
            [0, 2, 2],
            {"finetune": {"rl": {"kl_coef": 0.1, "final_kl_coef": 0.1}}},
            "the reference is scored on a GPU of the trainer, which has none on host 0",
        ),
    ],
)
def test_what_cannot_be_placed_is_refused(sizes: list[int], groups: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        placed_on(sizes, **groups)


def test_servers_of_the_run_are_reached_by_their_hosts_and_services_from_the_first_only() -> None:
    cfg = Config.model_validate({**CPU, "streams": {"backend": "redis"}})
    asked: list[tuple[int, int]] = []

    def free(host: int, port: int) -> bool:
        asked.append((host, port))
        return port != 8080

    jobs = place(cfg, imagined_hosts(3, []), ["retrieval"], free)
    urls = {job.name: job.url for job in jobs if job.url}
    assert urls == {
        "redis": "redis://192.0.2.1:11000",
        "retrieval": "http://127.0.0.1:7000",
        "actor_vllm_0": "http://192.0.2.3:8081",
        "actor_vllm_1": "http://192.0.2.2:8081",
    }
    assert (2, 8080) in asked and (1, 8081) in asked


PRIVACY = ("+domain=privacy_hopqa", "hardware=cpu", *RAY)


def test_replicas_of_a_retrieval_server_take_turns_over_the_hosts(dry_run: DryRun, tmp_path: Path) -> None:
    run = tmp_path / "run"
    status, _, err = dry_run(*PRIVACY, "world.hosts=3", "privacy_hopqa.retrieval_replicas=4")
    assert status == 0, err
    cfg = load(run)
    where = {job.name: (job.node_rank, job.hostname) for job in cfg.jobs_of("service")}
    assert where == {
        "redis": (0, "192.0.2.1"),
        "retrieval_0": (0, "127.0.0.1"),
        "retrieval_1": (1, "192.0.2.2"),
        "retrieval_2": (2, "192.0.2.3"),
        "retrieval_3": (0, "127.0.0.1"),
    }
    secret = run / "services" / "token"
    assert secret.stat().st_mode & 0o077 == 0
    told = (run / "services" / "retrieval_1" / "start.sh").read_text()
    assert "--host 192.0.2.2 --port 7000" in told and f"--allow-remote --token-file {secret}" in told
    assert f"export RETRIEVAL_TOKEN_FILE={secret}" in (run / "actor" / "start.sh").read_text()
    assert secret.read_text() not in told + (run / "conf" / "exp_config.yaml").read_text()


def test_a_single_server_stays_with_the_launcher_and_needs_no_secret(dry_run: DryRun, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert dry_run(*PRIVACY, "world.hosts=2")[0] == 0
    assert [job.node_rank for job in load(run).jobs_of("service")] == [0, 0]
    assert not (run / "services" / "token").exists()
    assert "RETRIEVAL_TOKEN_FILE" not in (run / "actor" / "start.sh").read_text()


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({}, "streams.backend=files: 2 hosts need a server between them; set streams=redis"),
        ({"streams": {"backend": "redis", "host": "localhost"}}, "streams.host=localhost: other hosts"),
        ({"debug": {"use_existing_llms": True}}, "debug.use_existing_llms=true: finds engines on"),
        ({"weights": {"directory": "/dev/shm/mine"}}, "weights.directory=/dev/shm/mine: engines"),
    ],
)
def test_what_is_right_on_one_host_only_is_refused(groups: dict[str, object], said: str) -> None:
    cfg = Config.model_validate(groups)
    assert any(said in line for line in several_hosts.check(cfg, imagined_hosts(2, [])))
    assert list(several_hosts.check(cfg, imagined_hosts(1, []))) == []


def test_files_between_hosts_and_a_wrong_number_of_hosts_are_refused(refused: Refused) -> None:
    assert "set streams=redis" in refused("hardware=cpu", "world.backend=ray", "streams=files")
    assert "world.hosts='two'" in refused("hardware=cpu", *RAY, "world.hosts=two")


@pytest.mark.parametrize("ray", [("world.backend=ray",), ("world.backend=ray", "streams.port=12000")])
def test_ray_alone_chooses_a_server_for_streams_and_says_why(placed: Placed, ray: tuple[str, ...]) -> None:
    cfg, out = placed("hardware=cpu", *ray)
    assert cfg.streams.backend == "redis" and cfg.streams.trim
    (row,) = [line for line in out.splitlines() if "service redis" in line]
    assert "world.backend=ray" in row


def test_ranks_that_round_an_update_up_beyond_the_lag_bound_are_refused(
    refused: Refused, placed: Placed
) -> None:
    three = ("hardware=cpu", *RAY, "world.hosts=4", "world.actor_hosts=1", "max_lag=256")
    step = "finetune.gradient_accumulation_passes=256"
    said = refused(*three, step)
    assert "max_lag=256: 3 trainer ranks round an update up to 258 samples" in said
    cfg, _ = placed(*three[:-1], "max_lag=258", step)
    assert cfg.derived.texts_per_update == 258
    _, out = placed("hardware=cpu", "max_lag=128", step)  # below a step with any number of ranks
    assert "rollouts take turns with updates" in " ".join(out.split())


def test_imagined_hosts_have_the_devices_that_are_asked_for(
    placed: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compose, "visible_devices", lambda: ["0"])  # a card here says nothing of hosts there
    cfg, _ = placed(*ON_GPUS, "world.backend=ray", "world.hosts=2", "hardware.devices=8")
    assert sum(len(job.gpus) for job in cfg.jobs) == 16


def test_one_host_of_ray_may_keep_files(placed: Placed) -> None:
    for files in ("streams=files", "streams.backend=files"):
        cfg, _ = placed("hardware=cpu", "world.backend=ray", "world.hosts=1", files)
        assert cfg.streams.backend == "files"


def test_a_dry_run_shows_imagined_hosts_and_needs_no_ray(placed: Placed) -> None:
    more = ("world.hosts=3", "hardware.devices=2", "world.actor_hosts=1")
    cfg, out = placed(*ON_GPUS, *RAY, *more)
    assert "host 2 │ imagined-2, 192.0.2.3: actor_vllm_0" in out
    assert "finetune_1" in out and cfg.derived.trainer_ranks == 4
    (division,) = [line for line in out.splitlines() if "division of GPUs" in line]
    assert "2 engines, 4 trainer ranks │ given" in division and "world.actor_hosts=K" in division
    assert cfg.streams.password is not None and cfg.streams.host == "192.0.2.1"
    text = Path(str(cfg.output_dir), "finetune_1/start.sh").read_text()
    assert "# Runs finetune_1 alone, on host 1." in text and "CUDA_VISIBLE_DEVICES=0,1" in text
    command = "--num_processes 4 --num_machines 2 --machine_rank 1 --main_process_ip 192.0.2.1"
    own = f"--config_file {cfg.output_dir}/conf/accelerate.yaml"
    assert f"{command} --main_process_port 29500 --rdzv_backend static {own} -m" in text


def test_processes_of_several_hosts_are_told_their_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    monkeypatch.setenv("VLLM_HOST_IP", "192.0.2.1")  # of this host, and of no other
    cfg = Config.model_validate({**CPU, "model_path": "m", "streams": {"backend": "redis"}})
    hosts = imagined_hosts(2, [])
    jobs = place(cfg, hosts, [], lambda host, port: True)
    cfg = cfg.model_copy(update={"jobs": jobs, "derived_": derive(cfg, jobs)})
    children = {child.name: child for child in commands(cfg, Path("/run"), [], hosts, None)}
    engine = children["actor_vllm_1"]
    assert engine.host == 1 and engine.env["VLLM_HOST_IP"] == "192.0.2.2"
    assert engine.env["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "NCCL_SOCKET_IFNAME" not in engine.env  # the user's own
    assert engine.alike == ("actor_vllm_0", "actor_vllm_1")
    assert children["finetune"].host == 0 and children["finetune"].alike == ()


def test_a_missing_ray_is_named_with_its_remedy(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "pipelinerl.launcher.ray_backend", raising=False)
    monkeypatch.setenv("DRY_RUN", "0")
    assert "Ray is not installed; pip install 'pipelinerl[ray]'" in refused("hardware=cpu", *RAY)
