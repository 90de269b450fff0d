"""What is executed for each job: command line, environment, folder, health check, restarts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipelinerl.base.heartbeat import heartbeat_path
from pipelinerl.config.machine import Job
from pipelinerl.config.tree import Config
from pipelinerl.domain import ServiceSpec
from pipelinerl.inference.vllm import (
    AHEAD,
    DEFAULT_VERSION,
    VllmOptions,
    VllmVersion,
    api_servers,
    installed_version,
    serve_argv,
    serve_env,
)
from pipelinerl.launcher import trainer_stand_in
from pipelinerl.launcher.streams_server import CHILD as STREAMS_CHILD
from pipelinerl.launcher.streams_server import server_child, server_job
from pipelinerl.launcher.supervision import NEVER, ChildSpec, HealthCheck, HeartbeatCheck, RestartPolicy

ROLE_MODULES = {
    "actor": "pipelinerl.actor",
    "preprocessor": "pipelinerl.preprocess",
    "finetune": "pipelinerl.finetune",
    "environment": "pipelinerl.launcher.environment_server",
}
LONGEST_PROBE_INTERVAL_S = 5.0
ENGINES = ("actor_llm", "preprocessor_llm")
NEEDED_BY_ROLLOUTS = ("actor_llm", "environment", "service")


def commands(
    cfg: Config,
    output_dir: Path,
    services: Sequence[ServiceSpec],
    devices: Sequence[str],
    checkpoint: Path | None,
) -> list[ChildSpec]:
    """One child process per job, in the order of `cfg.jobs`, and the trainer's stand-in where it is needed.

    `checkpoint` is the folder that engines load instead of `model_path`, `devices` are the ids of the GPUs
    that `job.gpus` counts.
    """
    specs = {spec.name: spec for spec in services}
    model = str(checkpoint) if checkpoint is not None else cfg.model_path
    made: list[ChildSpec] = []
    redis = server_job(cfg)
    servers = tuple(_process_name(job) for job in cfg.jobs if job.kind in NEEDED_BY_ROLLOUTS)
    if cfg.debug.use_existing_llms:
        servers = tuple(name for name in servers if not name.startswith("actor_vllm_"))
    for job in cfg.jobs:
        if job.kind == "actor_llm" and cfg.debug.use_existing_llms:
            continue
        if job is redis:
            made.append(server_child(cfg, output_dir, job))
        elif job.kind == "service":
            made.append(_service(cfg, output_dir, job, specs[job.name]))
        elif job.kind == "actor_llm":
            made.append(_engine(cfg, output_dir, job, model, devices))
        elif job.kind == "preprocessor_llm":
            made.append(_engine(cfg, output_dir, job, cfg.model_path, devices))
        else:
            made.append(_role(cfg, output_dir, job, devices, servers))
    if trainer_stand_in.needed(cfg):
        made.append(_stand_in(cfg, output_dir))
    return made


def _stand_in(cfg: Config, output_dir: Path) -> ChildSpec:
    """A partial run without a trainer: somebody must announce a version and count texts."""
    argv = [sys.executable, "-m", trainer_stand_in.__name__, str(output_dir)]
    streams = () if server_job(cfg) is None else (STREAMS_CHILD,)
    return ChildSpec(
        name=trainer_stand_in.NAME,
        argv=argv,
        env=common_env(cfg),
        log_dir=output_dir / trainer_stand_in.NAME,
        depends=streams,
        restart=NEVER,
    )


def common_env(cfg: Config) -> dict[str, str]:
    """Variables of every child. More than one thread per process is ruinous on few cores."""
    threads = str(cfg.hardware.threads_per_process)
    env = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    if os.environ.get("PYTHONPATH"):
        env["PYTHONPATH"] = os.environ["PYTHONPATH"]
    if Path(cfg.model_path).is_dir():
        env["HF_HUB_OFFLINE"] = "1"
    return env


def _gpus(job: Job, devices: Sequence[str]) -> list[str]:
    return [devices[index] if index < len(devices) else str(index) for index in job.gpus]


def _process_name(job: Job) -> str:
    return f"services/{job.name}" if job.kind == "service" else job.name


def _server(
    cfg: Config,
    output_dir: Path,
    job: Job,
    argv: list[str],
    env: Mapping[str, str],
    health: str,
    start_deadline_s: float,
) -> ChildSpec:
    name = _process_name(job)
    return ChildSpec(
        name=name,
        argv=argv,
        env=common_env(cfg) | dict(env),
        log_dir=output_dir / name,
        health=HealthCheck(
            url=job.url + health,
            start_deadline_s=start_deadline_s,
            liveness_deadline_s=cfg.engine.stall_deadline_s,
            interval_s=min(LONGEST_PROBE_INTERVAL_S, cfg.engine.stall_deadline_s / 4),
            metrics_url=f"{job.url}/metrics" if job.kind in ENGINES else None,
            paused_url=f"{job.url}/is_paused" if job.kind in ENGINES else None,
            generate_url=f"{job.url}/inference/v1/generate" if job.kind in ENGINES else None,
        ),
        restart=RestartPolicy(max_restarts=cfg.engine.max_restarts),
    )


def _service(cfg: Config, output_dir: Path, job: Job, spec: ServiceSpec) -> ChildSpec:
    values = {"port": str(job.port), "host": job.hostname, "output_dir": str(output_dir)}
    argv = [_fill(part, values) for part in spec.argv]
    return _server(cfg, output_dir, job, argv, spec.env, spec.health, spec.start_deadline_s)


def _fill(part: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        part = part.replace("{" + name + "}", value)
    return part


def _engine(cfg: Config, output_dir: Path, job: Job, model: str, devices: Sequence[str]) -> ChildSpec:
    argv, env = (
        _vllm(cfg, job, model, devices) if cfg.engine.kind == "vllm" else (_embedded(cfg, job, model), {})
    )
    return _server(cfg, output_dir, job, argv, env, "/health", cfg.engine.start_deadline_s)


def _embedded(cfg: Config, job: Job, model: str) -> list[str]:
    engine = cfg.engine
    options = {
        "model": model,
        "served-model-name": cfg.model_path,
        "host": job.hostname,
        "port": job.port,
        "max-num-seqs": engine.max_num_seqs,
        "max-model-len": engine.max_model_len,
        "max-prefill-tokens": engine.max_prefill_tokens,
        "max-waiting": engine.max_waiting,
        "dtype": engine.dtype,
        "threads": engine.threads,
    }
    argv = [sys.executable, "-m", "pipelinerl.inference.embedded"]
    for name, value in options.items():
        argv += [f"--{name}", str(value)]
    return argv


def _vllm(cfg: Config, job: Job, model: str, devices: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    assert job.port is not None
    python = cfg.vllm_config.python
    version = cfg.vllm_config.version or installed_version(python) or DEFAULT_VERSION
    options = VllmOptions(
        model=model,
        served_model_name=cfg.model_path,
        host=job.hostname,
        port=job.port,
        max_model_len=cfg.engine.max_model_len,
        transport=cfg.weights.transport + (AHEAD if cfg.weights_ahead else ""),
        version=VllmVersion.parse(version),
        kwargs=cfg.vllm_config.vllm_kwargs,
        fp32_head=bool(cfg.fp32_layer_prefix),
        api_server_count=cfg.vllm_config.api_server_count or _api_servers(cfg, job),
        trust_remote_code=cfg.finetune.trust_remote_code,
        python=python,
    )
    return serve_argv(options), serve_env(_gpus(job, devices))


def _api_servers(cfg: Config, job: Job) -> int:
    used = {gpu for one in cfg.jobs for gpu in one.gpus}
    return api_servers(len(os.sched_getaffinity(0)), len(job.gpus), len(used)) if job.gpus else 1


def _role(
    cfg: Config, output_dir: Path, job: Job, devices: Sequence[str], servers: tuple[str, ...]
) -> ChildSpec:
    argv = [sys.executable, "-m"]
    if job.kind == "finetune" and len(job.gpus) > 1:
        argv += ["accelerate.commands.launch", "--num_processes", str(len(job.gpus))]
        if cfg.accelerate_config is not None:
            argv += ["--config_file", cfg.accelerate_config]
        argv += ["-m"]
    argv += [ROLE_MODULES[job.kind], str(output_dir), "--job", str(job.idx)]
    env = common_env(cfg)
    if cfg.hardware.kind == "gpu":
        env["CUDA_VISIBLE_DEVICES"] = ",".join(_gpus(job, devices))
    if job.kind == "environment":
        return _server(cfg, output_dir, job, argv, env, "/health", cfg.engine.start_deadline_s)
    # The trainer loads its model while the engines load theirs; only rollouts need every server. On a GPU
    # that both share, though, vLLM measures free memory while it starts.
    depends = servers if job.kind == "actor" else tuple(name for name in servers if name == STREAMS_CHILD)
    if job.kind == "finetune":
        depends += tuple(other.name for other in cfg.jobs_of("actor_llm") if set(other.gpus) & set(job.gpus))
    return ChildSpec(
        name=job.name,
        argv=argv,
        env=env,
        log_dir=output_dir / job.name,
        depends=depends,
        restart=NEVER,
        heartbeat=HeartbeatCheck(
            path=heartbeat_path(output_dir, job.name),
            start_deadline_s=cfg.engine.start_deadline_s,
            silent_deadline_s=cfg.watchdog.silent_deadline_s,
        ),
    )
