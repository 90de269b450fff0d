"""Engines, devices, partial runs."""

from __future__ import annotations

from collections.abc import Iterator

from pipelinerl.config.tree import Config
from pipelinerl.inference.vllm import VllmVersion, installed_version, kwargs_problems


def check(cfg: Config, devices: int, dry_run: bool) -> Iterator[str]:
    """Problems with engines and devices; `devices` counts the visible GPUs."""
    engine, kind = cfg.engine, cfg.hardware.kind
    if engine.kind == "vllm" and kind == "cpu":
        yield "engine.kind=vllm: needs a GPU; set engine.kind=embedded or hardware=gpu"
    if engine.kind == "embedded" and cfg.weights.transport != "file":
        yield f"weights.transport={cfg.weights.transport}: the embedded engine reads files; set file"
    if engine.kind == "vllm" and cfg.weights.transport == "file":
        yield "weights.transport=file: vLLM engines take nccl; set weights.transport=nccl"
    if cfg.weights.transport == "nccl" and not dry_run:
        yield (
            "weights.transport=nccl: this version trains with file transport and embedded engines only; "
            "use hardware=cpu (DRY_RUN=1 shows the commands of a GPU run)"
        )
    if kind == "gpu" and engine.count != 1:
        yield f"engine.count={engine.count}: on GPUs world.actor_fraction decides; leave it at 1"
    if kind == "gpu" and not dry_run and cfg.hardware.devices > devices:
        given = cfg.hardware.devices
        yield f"hardware.devices={given}: only {devices} visible; lower it or check CUDA_VISIBLE_DEVICES"
    if kind == "gpu" and not dry_run and devices == 0:
        yield "hardware=gpu: no GPU is visible; check CUDA_VISIBLE_DEVICES or use hardware=cpu"
    if engine.kind == "vllm":
        yield from _vllm(cfg, dry_run)
    if cfg.debug.mode in ("finetune", "preprocessor", "finetune+preprocessor") and not cfg.debug.streams_from:
        yield f"debug.mode={cfg.debug.mode}: nothing produces its input; set debug.streams_from=RUN_FOLDER"
    if cfg.environment is not None and cfg.environments:
        yield "environment and environments: both are set; use environments for several"
    specs = [("environment", cfg.environment)] if cfg.environment is not None else []
    if isinstance(cfg.environments, dict):
        specs += [(f"environments.{key}", spec) for key, spec in cfg.environments.items()]
    elif cfg.environments:
        specs += [(f"environments.{index}", spec) for index, spec in enumerate(cfg.environments)]
    for key, spec in specs:
        if spec is not None and "_target_" not in spec:
            yield f"{key}: has no _target_; give the dotted path of the environment's class"


def _vllm(cfg: Config, dry_run: bool) -> Iterator[str]:
    kwargs = {key.replace("-", "_"): value for key, value in cfg.vllm_config.vllm_kwargs.items()}
    for name, value in (
        ("max_model_len", cfg.engine.max_model_len),
        ("max_num_seqs", cfg.engine.max_num_seqs),
    ):
        if kwargs.get(name, value) != value:
            yield (
                f"engine.{name}={value}: vllm_config.vllm_kwargs says {kwargs[name]}; "
                "set the one in vllm_config.vllm_kwargs only"
            )
    if kwargs.get("logprobs_mode") not in (None, "processed_logprobs"):
        yield (
            f"vllm_config.vllm_kwargs.logprobs-mode={kwargs['logprobs_mode']}: training needs "
            "probabilities after temperature; set processed_logprobs"
        )
    if kwargs.get("enable_prefix_caching") and cfg.weights.kv == "keep":
        yield (
            "vllm_config.vllm_kwargs.enable-prefix-caching=true: blocks of old weights would be "
            "reused; set false or weights.kv=recompute"
        )
    yield from kwargs_problems(cfg.vllm_config.vllm_kwargs)
    version = cfg.vllm_config.version or installed_version()
    if version is None:
        if not dry_run:
            yield "engine.kind=vllm: vLLM is not installed; install pipelinerl[vllm] or use hardware=cpu"
        return
    try:
        VllmVersion.parse(version)
    except ValueError as error:
        yield str(error)
