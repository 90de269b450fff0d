"""Configuration of sampling, engines and weight updates."""

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.base import NULL_IS_64, Section
from pipelinerl.config.variants import ENGINE_KINDS, TRANSPORTS


class SamplingParameters(Section):
    """Sampling of one completion."""

    max_tokens: int = Field(8192, ge=1)
    """Longest completion, in tokens; shorter where the prompt leaves less room in the context."""
    temperature: float = Field(1.0, ge=0)
    """Softmax temperature; 0 is greedy (evaluation only)."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; 1 = off (evaluation only)."""
    top_k: int = Field(0, ge=-1)
    """Keep the k likeliest tokens; 0 or -1 = off (evaluation only)."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Drop tokens below this share of the likeliest one's probability; 0 = off (evaluation only)."""
    min_tokens: int = Field(0, ge=0)
    """Tokens that must be sampled before the end token is allowed; 0 = off (evaluation only)."""
    seed: int | None = None
    """Seed of each request, the same for all (evaluation, or training with one attempt at a problem). Null:
    requests of evaluations, and of training with `max_lag=0`, get seeds that follow from the run's `seed`;
    others are drawn by the engine."""
    ignore_eos: bool = False
    """Continue after the end token."""
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = []
    """Ids that end a completion besides the end token."""
    stop: list[Annotated[str, Field(min_length=1)]] = []
    """Texts that end a completion. Its tokens include the stop text; its text ends before it."""
    repetition_penalty: float = Field(1.0, gt=0, le=100)
    """Divides positive and multiplies negative logits of ids in prompt and completion; 1 = off (evaluation
    only)."""
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    """Subtracted from the logits of ids in the completion; 0 = off (evaluation only)."""
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    """Subtracted from the logit of an id for each of its occurrences in the completion; 0 = off (evaluation
    only)."""


class LLMConfig(Section):
    """Sampling of the training rollouts."""

    parameters: SamplingParameters = SamplingParameters()
    """Sampling parameters of every call."""
    chat_template_kwargs: dict[str, Any] = {}
    """Arguments of the chat template."""


class TestLLMConfig(LLMConfig):
    """Sampling of the evaluation rollouts."""

    parameters: SamplingParameters = SamplingParameters(top_p=0.95, top_k=50)
    """Sampling parameters of every evaluation call."""


def _parallel(name: str, value: Any) -> int:
    """A size of `vllm_kwargs`; one that is left out is 1."""
    if value is None:
        return 1
    number = isinstance(value, int) and not isinstance(value, bool)
    if not (number or (isinstance(value, str) and value.isdecimal())) or int(value) < 1:
        raise ConfigError(
            f"vllm_config.vllm_kwargs.{name}={value}: not a whole number of at least 1; set one"
        )
    return int(value)


class VllmConfig(Section):
    """Options of `vllm serve`, used when `engine.kind` is `vllm`."""

    version: str | None = None
    """vLLM version the flags are written for; null = the installed one, or 0.33 in a dry run where none is
    installed."""
    python: str | None = None
    """Interpreter of another environment that has vLLM; null = this one."""
    api_server_count: int | None = Field(None, ge=1)
    """HTTP processes of one engine; null = one for every 4 cores of its share of the host's, from 1 to 8; on
    a CPU 1."""
    frontend: Literal["python", "rust"] = "python"
    """Program that serves HTTP; `rust` is refused."""
    outputs_once: bool = True
    """Hand over the tokens of an answer in a few parts, unless it is streamed or has stop texts; false = one
    by one. The engine's log says if its release does not support this."""
    quick_slots: bool = True
    """Skip vLLM's search for a cache block where a request needs no further one; false = search in every
    step. The engine's log says if its release or the model does not support this."""
    shared_prompts: bool = False
    """Read a common prefix of requests once for all of them, in steps that decode 8 requests or more; for
    groups with long prompts. Needs a GPU with FlashAttention 2 or 3 and the prefix cache."""
    vllm_kwargs: dict[str, Any] = {
        "dtype": "bfloat16",
        "gpu-memory-utilization": None,
        "max-num-seqs": None,
        "max-num-batched-tokens": 8192,
        "logprobs-mode": "processed_logprobs",
        "enable-prefix-caching": True,
        "async-scheduling": True,
        "enable-chunked-prefill": "",
        "return-tokens-as-token-ids": "",
        "tensor-parallel-size": None,
        "pipeline-parallel-size": 1,
        "generation-config": "vllm",
        "max_model_len": 10000,
    }
    """Flags of `vllm serve`: a bool becomes `--k` or `--no-k`, an empty string a bare flag, and null leaves
    the flag out; on GPUs the launcher chooses `gpu-memory-utilization` and `tensor-parallel-size` if null."""

    def parallel_size(self, *kinds: Literal["tensor", "pipeline", "data"]) -> int:
        """GPUs of one engine that these kinds of parallelism need, multiplied.

        Raises ConfigError for a size that vLLM would refuse.
        """
        kwargs = {key.replace("_", "-"): value for key, value in self.vllm_kwargs.items()}
        return math.prod(_parallel(name, kwargs.get(name)) for name in (f"{k}-parallel-size" for k in kinds))


class EngineConfig(Section):
    """The inference engines."""

    kind: Annotated[str, ENGINE_KINDS] = "vllm"
    """`embedded` runs on the CPU, `vllm` on GPUs or, with a CPU build of vLLM, on the CPU."""
    count: int = Field(1, ge=1)
    """Engines on the CPU; on GPUs the placement decides."""
    per_card: int = Field(1, ge=1, le=4)
    """Engines that share a card, each with an equal part of it. More than 1 needs engines of one card each;
    weights then travel through files. They run in parallel if CUDA's MPS is installed, and take turns
    otherwise."""
    threads: int = Field(1, ge=1)
    """Threads of an embedded engine's forward pass."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Weights and cache of an embedded engine."""
    max_num_seqs: Annotated[int, NULL_IS_64] = Field(64, ge=1)
    """Most requests that an engine decodes together."""
    max_model_len: int = Field(10000, ge=1)
    """Most tokens of a request, prompt and completion together."""
    max_prefill_tokens: int = Field(1024, ge=1)
    """Most prompt tokens that one embedded step adds."""
    max_waiting: int = Field(1024, ge=1)
    """Queued requests of an embedded engine before it answers 503."""
    prefix_cache: bool | None = None
    """Embedded engine: compute common prefixes of prompts once, but for models with gated DeltaNets; null =
    true, except with `max_lag=0` and `actor.llm_max_rollouts=1`."""
    start_deadline_s: float = Field(900, gt=0)
    """Longest time until the first successful health check of an engine or environment server, or the first
    sign of life of another role."""
    stall_deadline_s: float = Field(120, gt=0)
    """Time without a computed token, with requests running, or without an answer to health checks, after
    which an engine is killed and, within `max_restarts`, started again; other servers by health checks
    alone."""
    generate_deadline_s: float = Field(3600, gt=0)
    """Longest time of one request of a rollout, the client's retries included."""
    connect_deadline_s: float = Field(5, gt=0)
    """Longest time to open a connection."""
    max_restarts: int = Field(3, ge=0)
    """Most restarts of an engine or server; redis has none. Then the run goes on without one that was ready
    once, if `min_alive` inference engines, or another replica of a domain's service, are left; otherwise it
    ends."""
    min_alive: int = Field(1, ge=1)
    """Inference engines that must remain when one is given up or lost with its host; with fewer, the run
    ends."""
    shutdown_deadline_s: float = Field(15, gt=0)
    """Longest time from the request to stop until the process is killed."""
    port: int = Field(8080, ge=1, le=65535)
    """First port tried."""


class WeightsConfig(Section):
    """In-flight weight updates."""

    transport: Annotated[str, TRANSPORTS] = "nccl"
    """How tensors reach the engines: `nccl` between GPUs, or `file`. The launcher takes `file` where engines
    share a GPU with each other or with the trainer."""
    lora: Literal["merged", "adapter", "auto"] = "auto"
    """What engines receive with `finetune.lora`: merged weights, or adapters alone, which are added to the
    weights that an engine was started with. `auto`: adapters for embedded engines that the launcher starts,
    merged weights otherwise."""
    kv: Literal["keep", "recompute"] = "keep"
    """At an update, `keep` keeps cached keys and values of running requests, except in engines that did not
    serve the version before; `recompute` computes them again."""
    parity_every: int = Field(50, ge=0)
    """Updates between two comparisons of the log-probabilities of engine and trainer; 0 = no regular ones.
    The first two after a start of the trainer or of an engine are always compared."""
    parity_max_abs: float = Field(1e-4, gt=0)
    """Largest difference that passes, in nats, if engine and trainer compute in float32 without a cache in 8
    bits."""
    parity_mean_abs: float | None = Field(None, gt=0)
    """Largest mean difference that passes otherwise, in nats; null = three times the trainer's own rounding,
    at least 0.01."""
    directory: str | None = None
    """Folder in which a run makes a folder for its weight files; null = /dev/shm if the run has one host and
    it has room, otherwise `output_dir`."""
    ahead: bool | Literal["auto"] = "auto"
    """vLLM: receive a version into a second copy of the weights, so that the engine pauses only to load it.
    `auto`: true if that leaves enough room for requests; over NCCL, never with tensor or
    pipeline parallelism."""
    buffer_mb: int = Field(256, ge=1)
    """NCCL: packets are broadcast when they exceed this size, in MiB."""
    buffers: int = Field(2, ge=1)
    """NCCL: packets under way at the same time."""
