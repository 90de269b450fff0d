"""Placement: which process runs where, on which devices and ports, and what follows from it.

Pure functions of the configuration, called once by the launcher's plan and once by its checks.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pipelinerl.base.errors import ConfigError
from pipelinerl.base.ports import LOOPBACK
from pipelinerl.config.environments import replicas
from pipelinerl.config.hosts import Host
from pipelinerl.config.machine import DerivedConfig, Job, JobKind
from pipelinerl.config.tree import Config
from pipelinerl.engines.kind import engine_kind
from pipelinerl.streams.kind import streams_kind

STREAMS_SERVICE = "redis"
"""Name of the service that the core itself may start."""
RENDEZVOUS_PORT = 29500
"""First port tried for the rendezvous of trainer ranks on several hosts; torch's own default."""


def no_gpu() -> str:
    """What is said of a command for GPUs where none is visible."""
    return "hardware=gpu: no GPU is visible; check CUDA_VISIBLE_DEVICES, or use hardware=cpu"


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


class Place(NamedTuple):
    """Devices of one host, counted there; none on a CPU."""

    host: int
    gpus: list[int]


@dataclass(frozen=True)
class Layout:
    """Where each engine and each reference engine is, and the trainer's ranks on each of its hosts."""

    engines: list[Place]
    references: list[Place]
    trainer: list[Place]

    @property
    def trainer_jobs(self) -> list[Job]:
        """The trainer's jobs, for `derive`."""
        return [Job(kind="finetune", idx=0, gpus=place.gpus) for place in self.trainer]


def layout(cfg: Config, hosts: Sequence[Host]) -> Layout:
    """Who gets which devices, as if every role ran, but for a trainer beside an evaluation.

    Raises ConfigError if they do not suffice.
    """
    world, roles = cfg.world, cfg.debug.roles
    if cfg.hardware.kind == "cpu":
        return _on_cpus(cfg, hosts)
    everything = [Place(host.rank, list(range(len(host.devices)))) for host in hosts if host.devices]
    total = sum(len(place.gpus) for place in everything)
    if not total:
        raise ConfigError(
            f"{no_gpu()}; DRY_RUN=1 before the command shows what GPUs would run (hardware.devices=N says "
            "how many)"
        )
    if "actor_llm" not in roles and not cfg.debug.place_inference_workers:
        return Layout([], [], everything)
    per_engine = engine_kind(cfg).cards(cfg)
    if total == 1 and "finetune" in roles:
        if not world.share_device:
            raise ConfigError(
                "world: one GPU for engine and trainer; set world.share_device=true or use hardware=cpu"
            )
        if per_engine > 1 and "actor_llm" in roles:
            raise ConfigError(
                f"vllm_config.vllm_kwargs: an engine of {per_engine} GPUs (tensor x pipeline x data) does "
                "not fit on one GPU; set the parallel sizes to 1"
            )
        if cfg.engine.per_card > 1 and "actor_llm" in roles:
            raise ConfigError(
                f"engine.per_card={cfg.engine.per_card}: engine and trainer share the only GPU; set 1"
            )
        return Layout(everything, [], everything)
    if world.share_device and {"actor_llm", "finetune"} <= roles:
        raise ConfigError(
            f"world.share_device=true: has no effect here: engine and trainer have {total} GPUs; leave it "
            "out, or set hardware.devices=1"
        )
    places = _on_gpus(cfg, everything, per_engine)
    if "actor_llm" in roles and not places.engines:
        if alone := world.actor_hosts:
            raise ConfigError(
                f"world.actor_hosts={alone}: an engine of {per_engine} GPUs fits on none of them; lower the "
                "parallel sizes"
            )
        raise ConfigError(
            f"world.actor_fraction={world.actor_fraction}: leaves no GPU for engines; set at least 1"
        )
    shared = [place for place in places.engines for _ in range(cfg.engine.per_card)]
    return replace(places, engines=shared)


def _on_cpus(cfg: Config, hosts: Sequence[Host]) -> Layout:
    """Engines in turn on the hosts for engines, from the last one; a trainer rank on each other host."""
    ranks, only = [host.rank for host in hosts], cfg.world.actor_hosts
    if only is not None and only >= len(hosts) > 1:
        raise _all_for_engines(only, len(hosts))
    if len(hosts) == 1:
        served, trained = ranks, ranks
    elif only is None:
        served, trained = ranks[1:], ranks[:1]
    else:
        served, trained = ranks[-only:], ranks[: len(ranks) - only]
    engines = [Place(served[-1 - index % len(served)], []) for index in range(cfg.engine.count)]
    references = [Place(0, [])] if cfg.world.preprocessor_fraction else []
    return Layout(engines, references, [Place(rank, []) for rank in trained])


def _on_gpus(cfg: Config, everything: Sequence[Place], per_engine: int) -> Layout:
    """No engine is divided over hosts, and trainer ranks are equal in number on each of theirs."""
    world, trains, alone = cfg.world, "finetune" in cfg.debug.roles, cfg.world.actor_hosts
    largest = max(len(place.gpus) for place in everything)
    if len(everything) > 1 and per_engine > largest:
        raise ConfigError(
            f"vllm_config.vllm_kwargs: an engine of {per_engine} GPUs (tensor x pipeline x data) is larger "
            f"than a host ({largest}); lower the parallel sizes"
        )
    if alone == 0:
        raise ConfigError("world.actor_hosts=0: leaves no GPU for engines; set null or at least 1")
    if alone is not None and alone >= len(everything):
        raise _all_for_engines(alone, len(everything))
    rest = everything[: len(everything) - (alone or 0)]
    engines, references, ranks = world.fractions
    if cfg.debug.evaluates_only and world.finetune_fraction is None and not alone:
        ranks = 0  # no other launch trains beside an evaluation
    fractions = (0 if alone else engines, references, ranks)
    total = sum(len(place.gpus) for place in rest)
    actor, reference, trainer = split_devices(total, fractions, per_engine)
    if trainer < trains:
        raise ConfigError(
            f"world: {total} GPUs leave {max(trainer, 0)} for the trainer "
            f"({actor} for engines, {reference} for references, {per_engine} per engine); "
            "lower world.actor_fraction or the parallel sizes"
        )
    places = _fill(rest, actor // per_engine, reference // per_engine, per_engine, trains)
    shares = {place.host: len(place.gpus) for place in places.trainer}
    if trains and len(set(shares.values())) != 1:
        shown = ", ".join(f"{count} on host {rank}" for rank, count in shares.items()) or "none"
        reserved = "world.actor_hosts"
        if alone is None and not reference and len({len(place.gpus) for place in everything}) == 1:
            nearest = round(len(everything) * engines / (engines + ranks))
            reserved += f"={min(max(1, nearest), len(everything) - 1)}"
        raise ConfigError(
            f"world: trainer ranks must be equal in number on each host, not {shown}; set {reserved}, "
            "the fractions or hardware.devices"
        )
    on_their_own = _slots(everything[len(rest) :], per_engine)
    return Layout(on_their_own + places.engines, places.references, places.trainer)


def _slots(places: Sequence[Place], per_engine: int) -> list[Place]:
    """Where engines fit, from the last host down and on each host from its first device up."""
    return [
        Place(host, gpus[first : first + per_engine])
        for host, gpus in reversed(places)
        for first in range(0, len(gpus) - per_engine + 1, per_engine)
    ]


def _fill(places: Sequence[Place], engines: int, references: int, per_engine: int, trains: bool) -> Layout:
    """The first slots for engines, then for references; the trainer gets what is left on each host."""
    slots = _slots(places, per_engine)
    if engines + references > len(slots):
        raise ConfigError(
            f"world: {engines + references} engines of {per_engine} GPUs do not fit, {len(slots)} do; lower "
            "world.actor_fraction or the parallel sizes"
        )
    taken = {(slot.host, gpu) for slot in slots[: engines + references] for gpu in slot.gpus}
    rest = [Place(host, [gpu for gpu in gpus if (host, gpu) not in taken]) for host, gpus in places]
    trainer = [place for place in rest if place.gpus] if trains else []
    return Layout(slots[:engines], slots[engines : engines + references], trainer)


def _all_for_engines(asked: int, hosts: int) -> ConfigError:
    return ConfigError(
        f"world.actor_hosts={asked}: leaves none of {hosts} hosts for the trainer; set at most {hosts - 1}"
    )


class _Jobs:
    """Jobs in the order of their index; each server gets a port of its own on its host."""

    def __init__(self, hosts: Sequence[Host], free: Callable[[int, int], bool]) -> None:
        self.all: list[Job] = []
        self._hosts = {host.rank: host for host in hosts}
        self._free = free

    def count(self, kind: JobKind) -> int:
        return sum(job.kind == kind for job in self.all)

    def add(self, kind: JobKind, name: str, host: int = 0, **more: Any) -> None:
        """Add a job on a host."""
        beside = sum(job.kind == kind and job.node_rank == host for job in self.all)
        where = {"node_rank": host, "local_idx": beside, "hostname": self._hosts[host].address}
        own = {"idx": len(self.all), "replica_idx": self.count(kind), **where, **more}
        self.all.append(Job.model_validate({"kind": kind, "name": name, **own}))

    def port(self, host: int, first: int) -> int:
        """The first free port from `first` upwards; ConfigError without any."""
        given = {job.port for job in self.all if job.node_rank == host}
        found = next((p for p in range(first, 65536) if p not in given and self._free(host, p)), None)
        if found is None:
            raise ConfigError(f"port {first}: no free port from here to 65535; choose a lower one")
        return found

    def serve(
        self,
        kind: JobKind,
        name: str,
        port: int,
        host: int = 0,
        scheme: str = "http",
        private: bool = False,
        **more: Any,
    ) -> None:
        """Add a job with a server, at the first free port from `port` upwards; ConfigError without any.

        One that is `private` is reached from its host only.
        """
        found = self.port(host, port)
        address = LOOPBACK if private else self._hosts[host].address
        self.add(kind, name, host, hostname=address, port=found, url=f"{scheme}://{address}:{found}", **more)


def place(
    cfg: Config,
    hosts: Sequence[Host],
    services: Iterable[str],
    free: Callable[[int, int], bool],
    spread: Sequence[str] = (),
) -> list[Job]:
    """Every process of the run.

    `services` are the names of the servers to start, `free` says whether a host (by its rank) may use a port.
    Actor, preprocess, redis, services and environments are on the launcher's host; the last two are reached
    from there only, but for services in `spread`, which take turns over the hosts. Raises ConfigError if the
    devices do not suffice.
    """
    roles, places = cfg.debug.roles, layout(cfg, hosts)
    world, jobs = cfg.world, _Jobs(hosts, free)
    if streams_kind(cfg.streams).starts_server(cfg.streams):
        jobs.serve("service", STREAMS_SERVICE, cfg.streams.port, scheme="redis")
    for name in services:
        host = hosts[spread.index(name) % len(hosts)].rank if name in spread else 0
        jobs.serve("service", name, world.service_start_port, host, private=host == 0)
    for index, (host, gpus) in enumerate(places.engines if "actor_llm" in roles else []):
        name, port = f"actor_vllm_{index}", cfg.engine.port + index
        if cfg.debug.use_existing_llms:
            jobs.add("actor_llm", name, port=port, url=f"http://{LOOPBACK}:{port}", gpus=gpus)
        else:
            jobs.serve("actor_llm", name, port, host, gpus=gpus)
    for index, (host, gpus) in enumerate(places.references if "preprocessor" in roles else []):
        port = world.reference_start_port + index
        jobs.serve("preprocessor_llm", f"ref_vllm_{index}", port, host, gpus=gpus)
    if "actor" in roles:
        for key, count in replicas(cfg, jobs.count("actor_llm")).items():
            for index in range(count):
                name = f"environment_{jobs.count('environment')}"
                own: dict[str, Any] = {"environment_key": key, "environment_index": index}
                jobs.serve("environment", name, world.environment_start_port, private=True, **own)
        jobs.add("actor", "actor")
    if "preprocessor" in roles:
        reference = cfg.finetune.rl.uses_reference and not jobs.count("preprocessor_llm")
        jobs.add("preprocessor", "preprocess", gpus=_scoring_gpus(cfg, places.trainer, reference))
    _add_trainer(jobs, places.trainer if "finetune" in roles else [])
    return jobs.all


def _scoring_gpus(cfg: Config, trainer: Sequence[Place], reference: bool) -> Sequence[int]:
    """The trainer's last GPU on host 0, where preprocess scores teachers, or a reference without engines."""
    if not (trainer and (reference or cfg.teacher.paths)):
        return []
    here = next((place.gpus for place in trainer if place.host == 0), None)
    if here is None:
        what, instead = ("finetune.rl: the reference", "world.preprocessor_fraction")
        if not reference:
            what, instead = ("teacher: a model", "teacher.url instead of teacher.model_path")
        raise ConfigError(
            f"{what} is scored on a GPU of the trainer, which has none on host 0; set {instead}"
        )
    return here[-1:]


def _add_trainer(jobs: _Jobs, places: Sequence[Place]) -> None:
    """One job on each of its hosts; where there are several, the first has the port of their rendezvous."""
    port = jobs.port(places[0].host, RENDEZVOUS_PORT) if len(places) > 1 else None
    for index, (host, gpus) in enumerate(places):
        name = f"finetune_{index}" if index else "finetune"
        jobs.add("finetune", name, host, gpus=gpus, port=None if index else port)


def derive(cfg: Config, jobs: Sequence[Job]) -> DerivedConfig:
    """Quantities on which every role must agree; section `derived` of the run's tree."""
    finetune = cfg.finetune
    # One rank on each of its devices, or one on a host where it has none.
    ranks = sum(max(1, len(job.gpus)) for job in jobs if job.kind == "finetune") or 1
    rows_at_once = max(1, ranks // finetune.seq_parallel)
    step = _round_up(finetune.train_batch_size * finetune.gradient_accumulation_passes, rows_at_once)
    update = _round_up(finetune.weight_update_interval, step)
    return DerivedConfig(trainer_ranks=ranks, texts_per_step=step, texts_per_update=update)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
