"""Everything about vLLM that depends on its version: command line, environment, weight-transfer messages.

No other module branches on the version of an engine, and importing this one imports no vLLM. Its
constants are compared with what `python -m benchmarks.vllm_releases` reads in the wheel of each release.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pipelinerl.base.access import MIDDLEWARE
from pipelinerl.engines.vllm import outputs_once, quick_slots
from pipelinerl.engines.vllm.compile_once import DECORATORS, compile_once
from pipelinerl.engines.vllm.start import say_when_it_started

OLDEST = (0, 26)
SCALE_OUT_SINCE = (0, 30)
SPANS_SINCE = (0, 32)
PACKED_AT_INIT_SINCE = (0, 28)
# Experts of tokens are said by the first of vLLM's two model runners until 0.30, by the second since 0.28.
ROUTES_OF_SECOND_SINCE, ROUTES_OF_FIRST_UNTIL = (0, 28), (0, 30)
ROUTES, RUNNER = "enable-return-routed-experts", "VLLM_USE_V2_MODEL_RUNNER"
# On Hopper and newer cards every release computes the prompts of gated DeltaNets with flashinfer unless this
# flag says otherwise, and imports it at the first prompt.
STATES_BACKEND, TRITON = "gdn-prefill-backend", "triton"
# A CPU build: threads share the cores with the run's other processes, and a KV cache of so many GiB.
CPU_ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
# Ending of the back-ends that receive while the engine generates.
AHEAD = "_ahead"
# Weight-transfer back-ends that this package brings to vLLM, beside its stock `nccl`.
BACKENDS = {
    "file": ("receive_file", "FileWeightTransferEngine"),
    f"file{AHEAD}": ("receive_ahead", "FileAheadEngine"),
    f"nccl{AHEAD}": ("receive_ahead", "NcclAheadEngine"),
}
# Values of `weights.transport` that an engine can receive from.
TRANSPORTS = ("nccl", *(name for name in BACKENDS if not name.endswith(AHEAD)))
# One HTTP process ends at 20,000 to 25,000 tokens a second; two take 9 to 28 % more processor time than one
# (`vllm_front.json`).
CORES_PER_API_SERVER, MOST_API_SERVERS = 4, 8
# `vllm serve`, and the server alone, which vLLM deprecates since 0.29.
SERVE_MODULE, SERVER_MODULE = "vllm.entrypoints.cli.main", "vllm.entrypoints.openai.api_server"
# The place among vLLM's attention back-ends that is free for one of others, and ours by its switch.
ATTENTION, FREE_PLACE = "attention-backend", "CUSTOM"
SHARED_PROMPTS = "PIPELINERL_SHARED_PROMPTS"
SHARED_PROMPT_BACKEND = "pipelinerl.engines.vllm.shared_prompts.Backend"
RUST_FRONTEND = "VLLM_USE_RUST_FRONTEND"
# Flags are written for this version where vLLM is not installed, as in a dry run.
DEFAULT_VERSION = "0.33.0"

# Flags that the launcher decides; a user's value would break the protocol.
OWNED_FLAGS = frozenset(
    {"host", "port", "model", "served-model-name", "weight-transfer-config", "enable-scale-out", "middleware"}
    | {ROUTES}  # finetune.rl.routing
)


@dataclass(frozen=True, order=True)
class VllmVersion:
    """Major and minor number; the patch level never matters here."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> "VllmVersion":
        """`0.32.1+cu129` -> 0.32. Raises ValueError for other text and for versions before 0.26."""
        parts = text.split("+")[0].split(".")
        if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
            raise ValueError(
                f"vllm_config.version={text}: not a version; write for example {DEFAULT_VERSION}"
            )
        version = cls(int(parts[0]), int(parts[1]))
        if (version.major, version.minor) < OLDEST:
            raise ValueError(f"vLLM {text} is too old; install vllm>={OLDEST[0]}.{OLDEST[1]}")
        return version

    @property
    def has_scale_out(self) -> bool:
        """Whether token-in/token-out routes need `--enable-scale-out`."""
        return (self.major, self.minor) >= SCALE_OUT_SINCE

    @property
    def reports_versions(self) -> bool:
        """Whether an answer of the token routes says which weights sampled each token.

        Before, the version that was announced when the request was sent is a lower bound for all of them.
        """
        return (self.major, self.minor) >= SPANS_SINCE

    @property
    def packed_at_init(self) -> bool:
        """Whether the packing of NCCL broadcasts is agreed on once, in `init_info`.

        Before, it is part of each `update_info`. Each version refuses the other's place.
        """
        return (self.major, self.minor) >= PACKED_AT_INIT_SINCE

    @property
    def routes_runners(self) -> tuple[bool, bool]:
        """Whether the first and the second model runner say the experts of tokens.

        The second alone does since 0.31, and then takes them out of its prefix cache, which has to be on.
        """
        number = (self.major, self.minor)
        return number <= ROUTES_OF_FIRST_UNTIL, number >= ROUTES_OF_SECOND_SINCE

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


@dataclass(frozen=True, kw_only=True)
class VllmOptions:
    """What `serve_argv` turns into a command line."""

    model: str
    """Folder or hub name of the weights."""
    served_model_name: str
    """Name that requests give as `model`."""
    host: str
    """Address to bind; loopback on one node."""
    port: int
    """Port to bind."""
    max_model_len: int
    """Prompt and completion of one request, in tokens."""
    transport: str
    """Weight-transfer back-end: `nccl` of vLLM or one of `BACKENDS`."""
    version: VllmVersion
    """Version the flags are written for."""
    kwargs: Mapping[str, Any]
    """`vllm_config.vllm_kwargs`."""
    seed: int = 0
    """What the engine draws tokens of requests without a seed from, in [0, 2^32)."""
    fp32_head: bool = True
    """Compute logits in float32."""
    api_server_count: int | None = None
    """HTTP processes in front of the engine; None = one."""
    trust_remote_code: bool = False
    """Let the checkpoint bring Python code."""
    python: str | None = None
    """Interpreter of the environment that has vLLM; None = this one."""
    command: bool = True
    """Whether `vllm serve` works there (`has_command`)."""
    routes: bool = False
    """Say the experts of tokens in answers."""


def flag(name: str, value: Any) -> list[str]:
    """One option: null is left out, a bool becomes `--k` or `--no-k`, an empty string a bare flag."""
    key = "--" + name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [key if value else "--no-" + key[2:]]
    if value == "":
        return [key]
    return [key, json.dumps(value) if isinstance(value, (dict, list)) else str(value)]


def api_servers(cores: int, gpus: int, of: int) -> int:
    """HTTP processes for an engine on `gpus` of the `of` GPUs that share a host's cores.

    One process prepares at most some 20,000 tokens a second; more than it can use only cost memory.
    """
    return min(MOST_API_SERVERS, max(1, cores * gpus // max(1, of) // CORES_PER_API_SERVER))


def kwargs_problems(kwargs: Mapping[str, Any]) -> list[str]:
    """One line for each of the user's flags that the launcher decides itself."""
    keys = (key.replace("_", "-") for key in kwargs)
    return [
        f"vllm_config.vllm_kwargs.{key}: decided by the launcher; remove it"
        for key in keys
        if key in OWNED_FLAGS
    ]


def serve_words(model: str, python: str | None, command: bool) -> list[str]:
    """How the command line of a server of `model` begins, before its flags."""
    begins = [python or sys.executable, "-m"]
    return [*begins, SERVE_MODULE, "serve", model] if command else [*begins, SERVER_MODULE, "--model", model]


def serve_argv(options: VllmOptions) -> list[str]:
    """The API server for one engine. User flags come last and win over the fixed ones.

    It is `vllm serve`, started as a module of an interpreter: a `vllm` found on the PATH may belong to
    another environment. Where that command does not work, a single server is started without it.
    """
    flags: dict[str, Any] = {
        "served-model-name": options.served_model_name,
        "host": options.host,
        "port": options.port,
        "max-model-len": options.max_model_len,
        # Left out, it is 0 in every engine, so that engines whose batches are alike draw the same tokens.
        "seed": options.seed,
        # vLLM's default is the log-probability before temperature and filters. The trainer needs that of the
        # distribution a token was drawn from, or unmoved weights would not give a ratio of 1.
        "logprobs-mode": "processed_logprobs",
        # Else what a request leaves out comes from the checkpoint's generation_config.json, and the client
        # leaves out what is at its default.
        "generation-config": "vllm",
        "weight-transfer-config": {"backend": options.transport},
        "disable-uvicorn-access-log": "",  # health and metrics are asked for every second
        "middleware": MIDDLEWARE,  # no web pages; control routes take the run's token
    }
    if options.fp32_head:
        # vLLM reads the type of the head from the model's configuration.
        flags["hf-overrides"] = {"head_dtype": "float32"}
    if (options.api_server_count or 1) > 1:
        flags["api-server-count"] = options.api_server_count
    if options.trust_remote_code:
        flags["trust-remote-code"] = ""
    if options.version.has_scale_out:
        flags["enable-scale-out"] = ""
    if options.routes:
        flags[ROUTES] = ""
    for key, value in options.kwargs.items():
        name = key.replace("_", "-")
        # Merged: a user's override of another field must not take the float32 head away.
        if name == "hf-overrides" and isinstance(value, Mapping):
            flags[name] = {**flags.get(name, {}), **value}
        else:
            flags[name] = value
    argv = serve_words(options.model, options.python, options.command)
    for name, value in flags.items():
        argv += flag(name, value)
    return argv


def serve_env(gpus: Sequence[str], routes_of: VllmVersion | None = None) -> dict[str, str]:
    """Environment of an engine; `gpus` are ids as `CUDA_VISIBLE_DEVICES` names them, none for a CPU build.

    `routes_of`: the version of one that is to say the experts of tokens.
    """
    env = {
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "VLLM_SERVER_DEV_MODE": "1",  # the weight-update routes exist only then
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60",  # a client drops an idle connection first, aiohttp after 15 s
        RUST_FRONTEND: "0",  # a user's 1 would end the server, which is started with a middleware
    }
    if len(gpus) == 1:
        # A copy of the server's process has imported vLLM already, which takes a new one 14 s. vLLM goes
        # back to new ones by itself where a copy cannot be (CUDA in use); what the user has set stays.
        env["VLLM_WORKER_MULTIPROC_METHOD"] = os.environ.get("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    if routes_of is not None and not all(routes_of.routes_runners):
        env[RUNNER] = str(int(routes_of.routes_runners[1]))
    if not gpus:
        # What the user has set stays: cores and memory are those of the host.
        env |= {name: os.environ.get(name, value) for name, value in CPU_ENVIRONMENT.items()}
    return env


@dataclass(frozen=True)
class PauseRoutes:
    """How an engine is made to stop between two steps with all it has, and to go on."""

    pause: str
    resume: str = "/resume"


def pause_routes(version: str | None, clear_cache: bool) -> PauseRoutes:
    """The routes for an engine that says this version; None is no vLLM.

    `/pause` of vLLM answers 20 ms after the engine has stopped, so that the last outputs arrive before. Sleep
    level 0 is the same pause without that wait; it keeps the cache, so it cannot stand for `clear_cache`.
    """
    if version is not None and not clear_cache:
        return PauseRoutes("/sleep?level=0&mode=keep", "/wake_up?tags=scheduling")
    return PauseRoutes(f"/pause?mode=keep&clear_cache={'true' if clear_cache else 'false'}")


def packing(buffer_bytes: int, buffers: int) -> dict[str, Any]:
    """How NCCL broadcasts are packed, in the words of every version."""
    return {"packed": True, "packed_buffer_size_bytes": buffer_bytes, "packed_num_buffers": buffers}


def trainer_endpoint() -> Callable[[dict[str, Any]], Any]:
    """vLLM's own function with which a trainer joins the group of its stock NCCL back-end, as rank 0.

    It takes `master_address`, `master_port` and `world_size`, blocks until every engine has joined, uses the
    current CUDA device and returns the communicator. ImportError, with what to do, where there is no vLLM.
    """
    try:
        # Until 0.27 the engine's class has it too, as a static method.
        common = import_module("vllm.distributed.weight_transfer.nccl_common")
    except ImportError as error:
        raise ImportError(
            f"weights.transport=nccl: the trainer cannot import vLLM ({error}); "
            "install pipelinerl[vllm] in its environment or set weights.transport=file"
        ) from error
    endpoint: Callable[[dict[str, Any]], Any] = common.trainer_init
    return endpoint


def register_plugins() -> None:
    """Entry point `vllm.general_plugins`: vLLM calls it in each of its processes, perhaps more than once."""
    say_when_it_started()
    # By name, here: launcher and trainer use this module too, and to import it must not import vLLM.
    factory = import_module("vllm.distributed.weight_transfer.factory").WeightTransferEngineFactory
    for name, (module, engine) in BACKENDS.items():
        # It refuses a name that it knows already.
        with contextlib.suppress(ValueError):
            factory.register_engine(name, f"pipelinerl.engines.vllm.{module}", engine)
    compile_once(import_module(DECORATORS))
    if os.environ.get(SHARED_PROMPTS) == "1":
        registry = import_module("vllm.v1.attention.backends.registry")
        place = registry.AttentionBackendEnum[FREE_PLACE]
        registry.register_backend(place, SHARED_PROMPT_BACKEND)
    for switch, put in (
        (outputs_once.SWITCH, outputs_once.hand_over_once),
        (quick_slots.SWITCH, quick_slots.answer_quickly),
    ):
        if os.environ.get(switch) == "1":
            put()
