"""Placement: which process runs where, on which devices and ports, and what follows from it.

Pure functions of the configuration, called once by the launcher's plan and once by its checks.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipelinerl.base.errors import ConfigError
from pipelinerl.base.ports import LOOPBACK, is_free
from pipelinerl.config.environments import replicas
from pipelinerl.config.machine import DerivedConfig, Job, JobKind
from pipelinerl.config.tree import Config

STREAMS_SERVICE = "redis"
"""Name of the service that the core itself may start."""


def split_devices(total: int, fractions: tuple[int, int, int], per_engine: int = 1) -> tuple[int, int, int]:
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
    return actor, preprocessor, total - actor - preprocessor


@dataclass(frozen=True)
class Layout:
    """GPUs of each engine and of each reference engine, none on a CPU, and those left for the trainer."""

    engines: list[list[int]]
    references: list[list[int]]
    trainer: list[int]


def layout(cfg: Config, devices: list[int]) -> Layout:
    """Who gets which devices, as if every role ran. Raises ConfigError if they do not suffice."""
    world, roles = cfg.world, cfg.debug.roles
    if cfg.hardware.kind == "cpu":
        return Layout([[]] * cfg.engine.count, [[]] if world.preprocessor_fraction else [], [])
    if not devices:
        raise ConfigError("hardware=gpu: no GPU is visible; check CUDA_VISIBLE_DEVICES or use hardware=cpu")
    if "actor_llm" not in roles and not cfg.debug.place_inference_workers:
        return Layout([], [], devices)
    if len(devices) == 1 and "finetune" in roles:
        if not world.share_device:
            raise ConfigError(
                "world: one GPU for engine and trainer; set world.share_device=true or use hardware=cpu"
            )
        return Layout([devices], [], devices)
    per_engine = cfg.vllm_config.parallel_size("tensor", "pipeline", "data")
    fractions = (world.actor_fraction, world.preprocessor_fraction, world.finetune_fraction)
    actor, reference, trainer = split_devices(len(devices), fractions, per_engine)
    if trainer < (1 if "finetune" in roles else 0):
        raise ConfigError(
            f"world: {len(devices)} GPUs leave {max(trainer, 0)} for the trainer "
            f"({actor} for engines, {reference} for references, {per_engine} per engine); "
            "lower world.actor_fraction or the parallel sizes"
        )
    groups = [devices[first : first + per_engine] for first in range(0, actor + reference, per_engine)]
    engines = actor // per_engine
    rest = devices[actor + reference :] if "finetune" in roles else []
    return Layout(groups[:engines], groups[engines:], rest)


class _Jobs:
    """Jobs in the order of their index; each server gets a port of its own."""

    def __init__(self, free: Callable[[int], bool]) -> None:
        self.all: list[Job] = []
        self._free = free

    def count(self, kind: JobKind) -> int:
        return sum(job.kind == kind for job in self.all)

    def add(self, kind: JobKind, name: str, **more: Any) -> None:
        index = self.count(kind)
        places = {"idx": len(self.all), "replica_idx": index, "local_idx": index}
        self.all.append(Job.model_validate({"kind": kind, "name": name, **places, **more}))

    def serve(self, kind: JobKind, name: str, port: int, scheme: str = "http", **more: Any) -> None:
        """Add a job with a server, at the first free port from `port` upwards; ConfigError without any."""
        given = {job.port for job in self.all}
        found = next((p for p in range(port, 65536) if p not in given and self._free(p)), None)
        if found is None:
            raise ConfigError(f"port {port}: no free port from here to 65535; choose a lower one")
        self.add(kind, name, port=found, url=f"{scheme}://{LOOPBACK}:{found}", **more)


def place(
    cfg: Config,
    devices: Sequence[int],
    services: Iterable[str] = (),
    free: Callable[[int], bool] = is_free,
) -> list[Job]:
    """Every process of the run on this node.

    `devices` are the indices of the usable GPUs (none on the CPU), `services` the names of the servers to
    start, `free` says whether a port may be used. Raises ConfigError if the devices do not suffice.
    """
    roles, places = cfg.debug.roles, layout(cfg, list(devices))
    world, jobs = cfg.world, _Jobs(free)
    if cfg.streams.starts_server:
        jobs.serve("service", STREAMS_SERVICE, cfg.streams.port, "redis")
    for name in services:
        jobs.serve("service", name, world.service_start_port)
    for index, gpus in enumerate(places.engines if "actor_llm" in roles else []):
        name, port = f"actor_vllm_{index}", cfg.engine.port + index
        if cfg.debug.use_existing_llms:
            jobs.add("actor_llm", name, port=port, url=f"http://{LOOPBACK}:{port}", gpus=gpus)
        else:
            jobs.serve("actor_llm", name, port, gpus=gpus)
    for index, gpus in enumerate(places.references if "preprocessor" in roles else []):
        jobs.serve("preprocessor_llm", f"ref_vllm_{index}", world.reference_start_port + index, gpus=gpus)
    if "actor" in roles:
        for key, count in replicas(cfg, jobs.count("actor_llm")).items():
            for index in range(count):
                name = f"environment_{jobs.count('environment')}"
                port = world.environment_start_port
                jobs.serve("environment", name, port, environment_key=key, environment_index=index)
        jobs.add("actor", "actor")
    if "preprocessor" in roles:
        # Without reference engines preprocess scores the reference itself, on the trainer's last device.
        scores = cfg.finetune.rl.uses_reference and not jobs.count("preprocessor_llm")
        jobs.add("preprocessor", "preprocess", gpus=places.trainer[-1:] if scores else [])
    if "finetune" in roles:
        jobs.add("finetune", "finetune", gpus=places.trainer)
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
