"""Which role gets which devices and ports."""

import socket

import pytest

from pipelinerl.base.ports import is_free
from pipelinerl.config import Config, ConfigError
from pipelinerl.launcher.placement import place, split_devices
from tests.support.one_host import one_host


def config(**groups: object) -> Config:
    return Config.model_validate(groups)


CPU = {"hardware": {"kind": "cpu"}, "engine": {"kind": "embedded"}}
ONE = {"environments": {"e": {"_target_": "package.Maze"}}}


@pytest.mark.parametrize(
    ("total", "fractions", "per_engine", "expected"),
    [
        (8, (4, 0, 4), 1, (4, 0, 4)),
        (8, (2, 0, 6), 1, (2, 0, 6)),
        (4, (4, 1, 3), 1, (2, 1, 1)),
        (4, (4, 0, 4), 1, (2, 0, 2)),
        (2, (4, 0, 4), 1, (1, 0, 1)),
        (8, (4, 0, 4), 4, (4, 0, 4)),
        (8, (3, 0, 5), 2, (2, 0, 6)),
        (8, (1, 0, 7), 2, (2, 0, 6)),
        (3, (4, 0, 4), 1, (1, 0, 2)),
        (8, (0, 0, 8), 1, (0, 0, 8)),
        (1, (4, 0, 4), 1, (1, 0, 0)),
    ],
)
def test_devices_are_shared_in_multiples_of_an_engine(
    total: int, fractions: tuple[int, int, int], per_engine: int, expected: tuple[int, int, int]
) -> None:
    assert split_devices(total, fractions, per_engine) == expected


def test_shares_that_are_all_zero_are_refused() -> None:
    with pytest.raises(ConfigError, match="all are 0"):
        split_devices(8, (0, 0, 0))


def summary(cfg: Config, devices: int) -> list[tuple[str, list[int]]]:
    jobs = place(cfg, one_host(devices), [], lambda host, port: True)
    assert [job.idx for job in jobs] == list(range(len(jobs)))
    return [(job.kind, job.gpus) for job in jobs]


def test_without_a_device_everything_runs_on_the_cpu() -> None:
    cfg = config(hardware={"kind": "cpu"}, engine={"kind": "embedded", "count": 2})
    assert summary(cfg, 0) == [
        ("actor_llm", []),
        ("actor_llm", []),
        ("actor", []),
        ("preprocessor", []),
        ("finetune", []),
    ]


def test_a_gpu_run_without_a_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="no GPU is visible"):
        place(config(), one_host(), [], lambda host, port: True)


def test_one_device_is_shared_only_when_asked() -> None:
    with pytest.raises(ConfigError, match=r"set world\.share_device=true"):
        place(config(), one_host(1), [], lambda host, port: True)
    shared = summary(config(world={"share_device": True}), 1)
    assert ("actor_llm", [0]) in shared and ("finetune", [0]) in shared
    with pytest.raises(ConfigError, match=r"share_device=true: has no effect here: .* have 2 GPUs; leave it"):
        place(config(world={"share_device": True}), one_host(2), [], lambda host, port: True)


@pytest.mark.parametrize(
    ("devices", "engines", "trainer"),
    [(2, [[0]], [1]), (4, [[0], [1]], [2, 3]), (8, [[0], [1], [2], [3]], [4, 5, 6, 7])],
)
def test_engines_come_first_and_the_trainer_takes_the_rest(
    devices: int, engines: list[list[int]], trainer: list[int]
) -> None:
    placed = summary(config(), devices)
    assert [gpus for kind, gpus in placed if kind == "actor_llm"] == engines
    assert [gpus for kind, gpus in placed if kind == "finetune"] == [trainer]


def test_an_evaluation_leaves_no_device_to_a_trainer_that_it_does_not_have() -> None:
    evaluate = {"debug": {"mode": "evaluate"}}
    placed = summary(config(**evaluate), 8)
    assert [gpus for kind, gpus in placed if kind == "actor_llm"] == [[index] for index in range(8)]
    given = summary(config(**evaluate, world={"actor_fraction": 6, "finetune_fraction": 2}), 8)
    assert sum(kind == "actor_llm" for kind, _ in given) == 6


def test_a_parallel_engine_gets_all_its_devices() -> None:
    kwargs = {"tensor-parallel-size": 2, "pipeline_parallel_size": 2}
    placed = summary(config(vllm_config={"vllm_kwargs": kwargs}), 8)
    assert [gpus for kind, gpus in placed if kind == "actor_llm"] == [[0, 1, 2, 3]]
    with pytest.raises(ConfigError, match="leave 0 for the trainer"):
        place(config(vllm_config={"vllm_kwargs": kwargs}), one_host(4), [], lambda host, port: True)
    replicas = {"tensor-parallel-size": 1, "data-parallel-size": 2}
    placed = summary(config(vllm_config={"vllm_kwargs": replicas}), 8)
    assert [gpus for kind, gpus in placed if kind == "actor_llm"] == [[0, 1], [2, 3]]


def test_reference_engines_lie_between_engines_and_trainer() -> None:
    world = {"actor_fraction": 4, "preprocessor_fraction": 1, "finetune_fraction": 3}
    placed = summary(config(world=world), 4)
    assert placed[:3] == [("actor_llm", [0]), ("actor_llm", [1]), ("preprocessor_llm", [2])]
    assert placed[-1] == ("finetune", [3])


def test_a_reference_is_an_engine_on_the_cpu_too() -> None:
    jobs = place(config(**CPU, world={"preprocessor_fraction": 1}), one_host(), [], lambda host, port: True)
    reference = next(job for job in jobs if job.kind == "preprocessor_llm")
    assert (reference.name, reference.url) == ("ref_vllm_0", "http://127.0.0.1:8180")


def test_preprocess_gets_a_device_when_it_scores_the_reference_itself() -> None:
    rl = {"kl_coef": 0.1, "final_kl_coef": 0.1}
    placed = dict(summary(config(finetune={"rl": rl}), 4))
    assert (placed["preprocessor"], placed["finetune"]) == ([3], [2, 3])
    assert dict(summary(config(), 4))["preprocessor"] == []
    world = {"actor_fraction": 4, "preprocessor_fraction": 1, "finetune_fraction": 3}
    assert dict(summary(config(finetune={"rl": rl}, world=world), 4))["preprocessor"] == []
    without_trainer = config(finetune={"rl": rl}, debug={"mode": "actor+preprocessor"})
    assert dict(summary(without_trainer, 4))["preprocessor"] == []


def test_preprocess_gets_a_device_for_a_teacher_that_it_holds() -> None:
    assert dict(summary(config(teacher={"model_path": "folder"}), 4))["preprocessor"] == [3]
    assert dict(summary(config(teacher={"by_role": {"critic": "folder"}}), 4))["preprocessor"] == [3]
    assert dict(summary(config(teacher={"url": "http://elsewhere:8000"}), 4))["preprocessor"] == []


def test_a_taken_port_moves_on_to_the_next_free_one() -> None:
    jobs = place(config(**CPU, **ONE), one_host(), ["a", "b"], lambda host, port: port not in {7000, 8080})
    ports = {job.name: job.port for job in jobs if job.port}
    assert ports == {"a": 7001, "b": 7002, "environment_0": 7777, "actor_vllm_0": 8081}
    assert all(job.url == f"http://127.0.0.1:{job.port}" for job in jobs if job.port)


def test_engines_that_already_run_keep_their_ports() -> None:
    jobs = place(config(**CPU, debug={"use_existing_llms": True}), one_host(), [], lambda host, port: False)
    assert jobs[0].port == 8080


def test_a_port_in_use_is_not_free_and_none_left_is_an_error() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert not is_free(server.getsockname()[1])
    with pytest.raises(ConfigError, match="no free port"):
        place(config(**CPU), one_host(), [], lambda host, port: False)
