"""What is executed for each job: command line, environment, folder, health check, restarts."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pipelinerl.base import hub
from pipelinerl.base.files import write_whole
from pipelinerl.base.heartbeat import heartbeat_path
from pipelinerl.base.hub import model_folder
from pipelinerl.config.hosts import Host
from pipelinerl.config.machine import Job
from pipelinerl.config.tree import Config
from pipelinerl.domain import ServiceSpec
from pipelinerl.engines.kind import EngineStart, engine_kind
from pipelinerl.launcher import mps, trainer_stand_in
from pipelinerl.launcher.services import alike, control_environment, is_spread, token_file
from pipelinerl.launcher.streams_server import CHILD as STREAMS_CHILD
from pipelinerl.launcher.streams_server import server_child, server_job
from pipelinerl.launcher.supervision import ChildSpec, HealthCheck, HeartbeatCheck
from pipelinerl.observe import wandb_run
from pipelinerl.weights.transports.base import adapters_alone, weights_ahead

ROLE_MODULES = {
    "actor": "pipelinerl.actor",
    "preprocessor": "pipelinerl.preprocess",
    "finetune": "pipelinerl.finetune",
    "environment": "pipelinerl.launcher.environment_server",
}
LONGEST_PROBE_INTERVAL_S = 5.0
WANDB_RESTARTS = 2
WANDB_SILENT_S = 60.0
ENGINES = ("actor_llm", "preprocessor_llm")
ALLOCATOR = "PYTORCH_ALLOC_CONF"
NEEDED_BY_ROLLOUTS = ("actor_llm", "environment", "service")
RUN_A_DOMAIN = ("actor", "environment")
"""Roles in which code of a domain runs, as in the servers that it names itself."""
ACCELERATE_CONFIG = Path("conf", "accelerate.yaml")
"""What `accelerate launch` reads instead of the user's own file, in the run's folder."""


def commands(
    cfg: Config,
    output_dir: Path,
    services: Sequence[ServiceSpec],
    hosts: Sequence[Host],
    checkpoint: Path | None,
    dry_run: bool = False,
) -> list[ChildSpec]:
    """One child process per job, in the order of `cfg.jobs`, and the trainer's stand-in where it is needed.

    `checkpoint` is the folder that engines load instead of `model_path`, unless they are sent adapters alone;
    on `hosts` are the GPUs that `job.gpus` counts.
    """
    already_run = ("actor_llm",) if cfg.debug.use_existing_llms else ()
    jobs = [job for job in cfg.jobs if job.kind not in already_run]
    run = _Run(cfg, output_dir, jobs, hosts, services, dry_run)
    made: list[ChildSpec] = []
    for job in jobs:
        if job is server_job(cfg):
            made.append(server_child(cfg, output_dir, job))
        elif job.kind == "service":
            made.append(run.service(job))
        elif job.kind in ENGINES:
            # A checkpoint's model has its adapters merged: those that are sent would count twice.
            trained = job.kind == "actor_llm" and checkpoint is not None and not adapters_alone(cfg)
            made.append(run.engine(job, str(checkpoint) if trained else cfg.model_path))
        else:
            made.append(run.role(job))
    if trainer_stand_in.needed(cfg):
        made.append(run.stand_in())
    if mps.wanted(cfg):
        made += [run.mps(host) for host in dict.fromkeys(job.node_rank for job in cfg.jobs_of("actor_llm"))]
    if cfg.wandb.use_wandb and wandb_run.wandb_mode() != "disabled":
        made.append(run.wandb())
    return made


def write_accelerate_config(output_dir: Path) -> None:
    """Without a file of its own, accelerate takes from `~/.cache/huggingface/accelerate` what no flag says.

    That decides on GPUs, sharding and number formats, which here are those of the run.
    """
    write_whole(output_dir / ACCELERATE_CONFIG, "distributed_type: MULTI_GPU\n")


def compiler_caches() -> dict[str, str]:
    """Where torch's compilers keep what they made, so that the next run need not compile it again.

    Their own default is a folder for temporary files. What the user has set stays, and so does the default
    where the user's cache cannot be written.
    """
    user = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    there = next(path for path in (user, *user.parents) if path.exists())
    folders = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    ours = {name: str(user / "pipelinerl" / folder) for name, folder in folders.items()}
    return {name: path for name, path in ours.items() if name not in os.environ and os.access(there, os.W_OK)}


class _Run:
    """Commands of one run; `jobs` are those that the launcher starts."""

    def __init__(
        self,
        cfg: Config,
        output_dir: Path,
        jobs: Sequence[Job],
        hosts: Sequence[Host],
        services: Sequence[ServiceSpec],
        dry_run: bool,
    ) -> None:
        self._cfg, self._output_dir, self._hosts = cfg, output_dir, hosts
        self._services = {spec.name: spec for spec in services}
        self._spread = {spec.name for spec in services if is_spread(spec, services, hosts)}
        self._servers = tuple(_process_name(job) for job in jobs if job.kind in NEEDED_BY_ROLLOUTS)
        self._streams = tuple(name for name in self._servers if name == STREAMS_CHILD)
        # More than one thread per process is ruinous on few cores.
        threads = str(cfg.hardware.threads_per_process)
        self._env = {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OMP_WAIT_POLICY": "PASSIVE",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
        }
        if os.environ.get("PYTHONPATH"):
            self._env["PYTHONPATH"] = os.environ["PYTHONPATH"]
        models = (cfg.model_path, *cfg.teacher.paths)
        # The hub's client asks a silent hub for minutes. Who loads no more than folders needs no hub; a
        # domain's code may want data from there all the same. A dry run may be for another machine.
        self._of_model = {"HF_HUB_OFFLINE": "1"} if all(Path(path).is_dir() for path in models) else {}
        if not self._of_model and not dry_run and all(map(model_folder, models)) and hub.silence():
            self._env["HF_HUB_OFFLINE"] = "1"

    def stand_in(self) -> ChildSpec:
        """A partial run without a trainer: somebody must announce a version and count samples."""
        return ChildSpec(
            name=trainer_stand_in.NAME,
            argv=[sys.executable, "-m", trainer_stand_in.__name__, str(self._output_dir)],
            env=self._env,
            log_dir=self._output_dir / trainer_stand_in.NAME,
            depends=self._streams,
        )

    def wandb(self) -> ChildSpec:
        """What sends the metrics of all roles; no role knows of it."""
        return ChildSpec(
            name=wandb_run.ROLE,
            argv=[sys.executable, "-m", wandb_run.__name__, str(self._output_dir)],
            env=self._env,
            log_dir=self._output_dir / wandb_run.ROLE,
            max_restarts=WANDB_RESTARTS,
            heartbeat=HeartbeatCheck(
                path=heartbeat_path(self._output_dir, wandb_run.ROLE),
                start_deadline_s=self._cfg.engine.start_deadline_s,
                silent_deadline_s=WANDB_SILENT_S,
            ),
            optional=True,
        )

    def mps(self, host: int) -> ChildSpec:
        """What lets engines of one card run beside each other, on each host of engines."""
        name = _of_host(mps.NAME, host)
        return ChildSpec(
            name=name,
            argv=[sys.executable, "-m", mps.__name__],
            env=self._env | mps.environment(self._output_dir),
            log_dir=self._output_dir / name,
            host=host,
            optional=True,
        )

    def service(self, job: Job) -> ChildSpec:
        """A server of the domain; one of several is given up where its restarts are used up."""
        spec = self._services[job.name]
        argv = [*spec.argv, *((spec.remote_argv or ()) if spec.name in self._spread else ())]
        values = {"port": job.port, "host": job.hostname, "output_dir": self._output_dir}
        for name, value in (values | {"token_file": token_file(self._output_dir)}).items():
            argv = [part.replace("{" + name + "}", str(value)) for part in argv]
        child = self._server(job, argv, spec.env, spec.health, spec.start_deadline_s)
        same = tuple(f"services/{name}" for name in alike(spec, list(self._services.values())))
        return replace(child, alike=same, least=1, spare=bool(same))

    def _tokens(self) -> dict[str, str]:
        """How rollouts learn of the secret of servers on other hosts."""
        file = str(token_file(self._output_dir))
        return {self._services[name].token_variable: file for name in self._spread}

    def engine(self, job: Job, model: str) -> ChildSpec:
        """An engine that loads `model` under the name of the policy it started from."""
        cfg, kind = self._cfg, engine_kind(self._cfg)
        start = EngineStart(
            cfg=cfg,
            job=job,
            model=model,
            host=self._hosts[job.node_rank],
            gpus=self._gpus(job),
            ahead=weights_ahead(cfg),
            routes=cfg.derived_ is not None and cfg.derived_.returns_routes,
        )
        argv, env = kind.command(start)
        env = env | self._of_model | control_environment(self._output_dir, job.hostname)
        depends: tuple[str, ...] = ()
        if job.kind == "actor_llm" and mps.wanted(cfg):
            env, depends = env | mps.environment(self._output_dir), (_of_host(mps.NAME, job.node_rank),)
        return replace(self._server(job, argv, env), stages=kind.stages, depends=depends)

    def role(self, job: Job) -> ChildSpec:
        """Actor, preprocess, trainer, or the server of an environment."""
        cfg, output_dir = self._cfg, self._output_dir
        argv = [sys.executable, "-m"]
        if job.kind == "finetune":
            argv += self._ranks(job)
        argv += [ROLE_MODULES[job.kind], str(output_dir), "--job", str(job.idx)]
        env = {} if job.kind in RUN_A_DOMAIN else dict(self._of_model)
        if cfg.hardware.kind == "gpu":
            # The user's home may be another one on other hosts, or none.
            caches = {} if job.node_rank else compiler_caches()
            env |= {"CUDA_VISIBLE_DEVICES": ",".join(self._gpus(job)), **caches}
            if job.kind == "finetune" and ALLOCATOR not in os.environ:
                # Optimizer states come after the first row's activations, in whose gaps they would not fit.
                env[ALLOCATOR] = "expandable_segments:True"
        if job.kind == "environment":
            return self._server(job, argv, env)
        if job.kind == "actor":
            env |= self._tokens()
        elif job.kind == "finetune":
            env |= control_environment(output_dir)
        # The trainer loads its model while the engines load theirs; only rollouts need every server. On a GPU
        # that both share, though, vLLM measures free memory while it starts.
        depends = self._servers if job.kind == "actor" else self._streams
        if job.kind == "finetune":
            beside = [other for other in cfg.jobs_of("actor_llm") if other.node_rank == job.node_rank]
            shared = [other.name for other in beside if set(other.gpus) & set(job.gpus)]
            depends += tuple(name for name in shared if name in self._servers)
        return ChildSpec(
            name=job.name,
            argv=argv,
            env=self._env | self._network(job) | env,
            log_dir=output_dir / job.name,
            host=job.node_rank,
            depends=depends,
            heartbeat=HeartbeatCheck(
                path=heartbeat_path(output_dir, job.name),
                start_deadline_s=cfg.engine.start_deadline_s,
                silent_deadline_s=cfg.watchdog.silent_deadline_s,
            ),
        )

    def _ranks(self, job: Job) -> list[str]:
        """What starts several ranks of the trainer, on this job's host and on those of its other jobs."""
        trainers = self._cfg.jobs_of("finetune")
        several, first = len(trainers) > 1, trainers[0]
        if not several and len(job.gpus) <= 1:
            return []
        argv = ["accelerate.commands.launch", "--num_processes", str(self._cfg.derived.trainer_ranks)]
        if several:
            argv += ["--num_machines", str(len(trainers)), "--machine_rank", str(job.replica_idx)]
            argv += ["--main_process_ip", first.hostname, "--main_process_port", str(first.port)]
            argv += ["--rdzv_backend", "static"]
        config_file = self._cfg.accelerate_config or str(self._output_dir / ACCELERATE_CONFIG)
        return [*argv, "--config_file", config_file, "-m"]

    def _network(self, job: Job) -> dict[str, str]:
        """Which interface carries what goes between hosts; one that the user has set stays."""
        if not self._cfg.several_hosts:
            return {}
        host = self._hosts[job.node_rank]
        interface = self._cfg.world.interface or host.interface or ""
        names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if interface else ()
        # The address in the launcher's environment, if there is one, is not that of other hosts.
        return {"VLLM_HOST_IP": host.address, **{n: interface for n in names if n not in os.environ}}

    def _server(
        self,
        job: Job,
        argv: list[str],
        env: Mapping[str, str],
        health: str = "/health",
        start_deadline_s: float | None = None,
    ) -> ChildSpec:
        engine, name = self._cfg.engine, _process_name(job)
        served = job.kind == "actor_llm"
        return ChildSpec(
            name=name,
            argv=argv,
            env=self._env | self._network(job) | dict(env),
            log_dir=self._output_dir / name,
            host=job.node_rank,
            alike=tuple(one.name for one in self._cfg.jobs_of("actor_llm")) if served else (),
            least=engine.min_alive,
            spare=served,
            health=HealthCheck(
                url=job.url + health,
                start_deadline_s=start_deadline_s or engine.start_deadline_s,
                liveness_deadline_s=engine.stall_deadline_s,
                interval_s=min(LONGEST_PROBE_INTERVAL_S, engine.stall_deadline_s / 4),
                engine_url=job.url if job.kind in ENGINES else None,
            ),
            max_restarts=engine.max_restarts,
        )

    def _gpus(self, job: Job) -> list[str]:
        devices = self._hosts[job.node_rank].devices
        return [devices[index] if index < len(devices) else str(index) for index in job.gpus]


def _of_host(name: str, host: int) -> str:
    return f"{name}_{host}" if host else name


def _process_name(job: Job) -> str:
    return f"services/{job.name}" if job.kind == "service" else job.name
