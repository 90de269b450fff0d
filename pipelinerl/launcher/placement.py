"""Placement: which process runs where, on which devices and ports. Pure functions of the configuration."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelinerl.base.errors import ConfigError, suggestion
from pipelinerl.config.environments import replicas
from pipelinerl.config.machine import DerivedConfig, Job, JobKind
from pipelinerl.config.tree import Config

__all__ = ["Ports", "Shares", "derive", "engine_devices", "is_free", "place", "roles_of", "split_devices"]

LOOPBACK = "127.0.0.1"
STREAMS_SERVICE = "redis"
"""Name of the service that the core itself may start."""
ROLES_OF_MODE: dict[str, frozenset[str]] = {
    "": frozenset({"actor_llm", "actor", "preprocessor", "finetune"}),
    "open_loop": frozenset({"actor_llm", "actor", "preprocessor", "finetune"}),
    "actor": frozenset({"actor_llm", "actor"}),
    "preprocessor": frozenset({"preprocessor"}),
    "finetune": frozenset({"finetune"}),
    "actor+preprocessor": frozenset({"actor_llm", "actor", "preprocessor"}),
    "finetune+preprocessor": frozenset({"finetune", "preprocessor"}),
}


def roles_of(mode: str) -> frozenset[str]:
    """Kinds of jobs that a debug mode starts; the empty one starts all. ConfigError for an unknown mode."""
    if mode not in ROLES_OF_MODE:
        raise ConfigError(
            f"debug.mode={mode!r}: no such mode; {suggestion(mode, filter(None, ROLES_OF_MODE))}"
        )
    return ROLES_OF_MODE[mode]


@dataclass(frozen=True)
class Shares:
    """Numbers of devices by use."""

    actor: int
    preprocessor: int
    finetune: int


def split_devices(total: int, fractions: tuple[int, int, int], per_engine: int = 1) -> Shares:
    """Divide `total` devices in the ratio (actor, preprocessor, finetune).

    Engine shares are rounded down to multiples of `per_engine`, but hold at least one engine where the
    fraction is not 0; the trainer takes the rest.
    """
    whole = sum(fractions)
    if whole == 0:
        raise ConfigError("world.*_fraction: all are 0; give at least one role a share of the devices")

    def engines(fraction: int) -> int:
        share = total * fraction // whole // per_engine * per_engine
        return max(share, per_engine) if fraction else 0

    actor, preprocessor = engines(fractions[0]), engines(fractions[1])
    return Shares(actor, preprocessor, total - actor - preprocessor)


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether nothing listens on `host:port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


class Ports:
    """Hands out each port once, the next free one if the wanted one is taken."""

    def __init__(self, free: Callable[[int], bool] = is_free) -> None:
        self._free = free
        self._given: set[int] = set()

    def next(self, wanted: int) -> int:
        """The first free port from `wanted` upwards. Raises ConfigError when there is none."""
        for port in range(wanted, 65536):
            if port not in self._given and self._free(port):
                self._given.add(port)
                return port
        raise ConfigError(f"port {wanted}: no free port from here to 65535; choose a lower one")


def engine_devices(cfg: Config) -> int:
    """Devices of one vLLM server: tensor times pipeline times data parallel size."""
    return cfg.vllm_config.parallel_size("tensor", "pipeline", "data")


class _Jobs:
    """Jobs in the order of their index."""

    def __init__(self) -> None:
        self.all: list[Job] = []

    def add(self, kind: JobKind, name: str, port: int | None = None, gpus: Sequence[int] = ()) -> Job:
        replica = sum(job.kind == kind for job in self.all)
        job = Job(
            kind=kind,
            idx=len(self.all),
            replica_idx=replica,
            local_idx=replica,
            port=port,
            gpus=list(gpus),
            url=f"http://{LOOPBACK}:{port}" if port is not None else "",
            name=name,
        )
        self.all.append(job)
        return job


def place(
    cfg: Config,
    devices: Sequence[int],
    services: Iterable[str] = (),
    environments: Mapping[str, Mapping[str, Any]] | None = None,
    free: Callable[[int], bool] = is_free,
) -> list[Job]:
    """Every process of the run on this node.

    `devices` are the indices of the usable GPUs (none on the CPU), `services` the names of the servers to
    start, `environments` the specifications of those that need servers, by key. Raises ConfigError if the
    devices do not suffice.
    """
    roles = roles_of(cfg.debug.mode)
    ports, jobs = Ports(free), _Jobs()
    if cfg.streams.starts_server:
        redis = jobs.add("service", STREAMS_SERVICE, ports.next(cfg.streams.port))
        jobs.all[-1] = redis.model_copy(update={"url": f"redis://{LOOPBACK}:{redis.port}"})
    for name in services:
        jobs.add("service", name, ports.next(cfg.world.service_start_port))
    trainer_gpus: Sequence[int] = ()
    if cfg.hardware.kind == "cpu":
        if "actor_llm" in roles:
            for index in range(cfg.engine.count):
                jobs.add("actor_llm", f"actor_vllm_{index}", _engine_port(cfg, ports, index))
        if "preprocessor" in roles and cfg.world.preprocessor_fraction:
            jobs.add("preprocessor_llm", "ref_vllm_0", ports.next(cfg.world.reference_start_port))
    else:
        trainer_gpus = _add_gpu_engines(cfg, jobs, ports, list(devices), roles)
    if "actor" in roles:
        _add_environments(cfg, jobs, ports, environments or {})
        jobs.add("actor", "actor")
    if "preprocessor" in roles:
        jobs.add("preprocessor", "preprocess", gpus=_reference_gpus(cfg, jobs, trainer_gpus))
    if "finetune" in roles:
        jobs.add("finetune", "finetune", gpus=trainer_gpus)
    return jobs.all


def derive(cfg: Config, jobs: Sequence[Job]) -> DerivedConfig:
    """Quantities on which every role must agree; section `derived` of the run's tree."""
    finetune = cfg.finetune
    ranks = max([1, *(len(job.gpus) for job in jobs if job.kind == "finetune")])
    step = _round_up(finetune.train_batch_size * finetune.gradient_accumulation_passes, ranks)
    update = _round_up(finetune.weight_update_interval, step)
    return DerivedConfig(trainer_ranks=ranks, texts_per_step=step, texts_per_update=update)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _reference_gpus(cfg: Config, jobs: _Jobs, trainer_gpus: Sequence[int]) -> Sequence[int]:
    """Without reference engines preprocess scores the reference itself, on the trainer's last device."""
    if not cfg.finetune.rl.uses_reference or any(job.kind == "preprocessor_llm" for job in jobs.all):
        return ()
    return trainer_gpus[-1:]


def _engine_port(cfg: Config, ports: Ports, index: int) -> int:
    if cfg.debug.use_existing_llms:
        return cfg.engine.port + index
    return ports.next(cfg.engine.port + index)


def _add_gpu_engines(
    cfg: Config, jobs: _Jobs, ports: Ports, devices: list[int], roles: frozenset[str]
) -> Sequence[int]:
    """Place engines on devices and return what is left for the trainer."""
    needs_engines = "actor_llm" in roles or cfg.debug.place_inference_workers
    needs_trainer = "finetune" in roles
    per_engine = engine_devices(cfg)
    if not devices:
        raise ConfigError("hardware=gpu: no GPU is visible; check CUDA_VISIBLE_DEVICES or use hardware=cpu")
    if not needs_engines:
        return devices
    world = cfg.world
    if len(devices) == 1 and needs_trainer:
        if not world.share_device:
            raise ConfigError(
                "world: one GPU for engine and trainer; set world.share_device=true or use hardware=cpu"
            )
        if "actor_llm" in roles:
            jobs.add("actor_llm", "actor_vllm_0", _engine_port(cfg, ports, 0), devices)
        return devices
    fractions = (world.actor_fraction, world.preprocessor_fraction, world.finetune_fraction)
    shares = split_devices(len(devices), fractions, per_engine)
    if shares.finetune < (1 if needs_trainer else 0):
        raise ConfigError(
            f"world: {len(devices)} GPUs leave {max(shares.finetune, 0)} for the trainer "
            f"({shares.actor} for engines, {shares.preprocessor} for references, {per_engine} per engine); "
            "lower world.actor_fraction or the parallel sizes"
        )
    engines = shares.actor // per_engine
    for index in range(engines if "actor_llm" in roles else 0):
        gpus = devices[index * per_engine : (index + 1) * per_engine]
        jobs.add("actor_llm", f"actor_vllm_{index}", _engine_port(cfg, ports, index), gpus)
    for index in range(shares.preprocessor // per_engine if "preprocessor" in roles else 0):
        first = shares.actor + index * per_engine
        port = ports.next(world.reference_start_port + index)
        jobs.add("preprocessor_llm", f"ref_vllm_{index}", port, devices[first : first + per_engine])
    return devices[shares.actor + shares.preprocessor :] if needs_trainer else ()


def _add_environments(cfg: Config, jobs: _Jobs, ports: Ports, specs: Mapping[str, Mapping[str, Any]]) -> None:
    engines = sum(job.kind == "actor_llm" for job in jobs.all)
    for key, count in replicas(cfg, specs, engines).items():
        for index in range(count):
            total = sum(job.kind == "environment" for job in jobs.all)
            port = ports.next(cfg.world.environment_start_port)
            job = jobs.add("environment", f"environment_{total}", port)
            jobs.all[-1] = job.model_copy(update={"environment_key": key, "environment_index": index})
