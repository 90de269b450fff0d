"""vLLM's engine process and its front end, as far as outputs go through them, in the shapes of 0.26 and 0.33.

A step is told which tokens it samples. `Front` collects what arrives, as vLLM's output processor does.
"""

import asyncio
import queue
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy as np

ABORT, STOP = 2, 0
# The fields of `EngineCoreOutput` behind `new_logprobs`, with defaults of None unless said.
REST: dict[str, tuple[str, ...]] = {
    "0.26": (
        *("new_prompt_logprobs_tensors", "pooling_output", "finish_reason", "stop_reason", "events"),
        *("kv_transfer_params", "ec_transfer_params", "trace_headers", "prefill_stats", "routed_experts"),
        "num_nans_in_logits",
    )
}
REST["0.33"] = (
    *REST["0.26"],
    *("mm_cache_miss_hashes", "new_sampling_mask", "spec_decode_metrics"),
    *("prompt_token_id_logprobs", "error"),
)
MORE: dict[str, tuple[str, ...]] = {
    "0.26": ("scheduler_stats", "utility_output", "finished_requests", "wave_complete", "start_wave")
}
MORE["0.33"] = (*MORE["0.26"], "weight_version")


class LogprobsLists(NamedTuple):
    logprob_token_ids: np.ndarray
    logprobs: np.ndarray
    sampled_token_ranks: np.ndarray
    cu_num_generated_tokens: list[int] | None = None

    def slice_request(self, req_idx: int, num_positions: int) -> "LogprobsLists":
        if self.cu_num_generated_tokens is not None:
            req_idx = self.cu_num_generated_tokens[req_idx]
        rows = slice(req_idx, req_idx + num_positions)
        return LogprobsLists(
            self.logprob_token_ids[rows], self.logprobs[rows], self.sampled_token_ranks[rows], None
        )


class OutputKind(Enum):
    CUMULATIVE, DELTA, FINAL_ONLY = 0, 1, 2


@dataclass(eq=False)
class Request:
    request_id: str
    sampling_params: Any
    client_index: int = 0
    resumable: bool = False
    events: list[str] = field(default_factory=lambda: ["QUEUED"])


def request(name: str, client: int = 0, resumable: bool = False, **sampling: Any) -> Request:
    params = {"output_kind": OutputKind.FINAL_ONLY, "stop": [], "num_logprobs": 0} | sampling
    return Request(name, SimpleNamespace(**params), client, resumable)


class Token(NamedTuple):
    """What a step samples for one request."""

    id: int
    logprob: float
    rank: int


@dataclass
class Sampled:
    """What a step says of one request."""

    tokens: Sequence[Token]
    ends: bool = False
    events: list[str] | None = None


def vllm(release: str) -> dict[str, ModuleType]:
    """The modules of a release, by name."""
    rest = [(name, Any, 0 if name == "num_nans_in_logits" else None) for name in REST[release]]
    output: Any = msgspec.defstruct(
        "EngineCoreOutput",
        [("request_id", str), ("new_token_ids", list[int]), ("new_logprobs", Any, None), *rest],
    )
    fields: list[Any] = [("engine_index", int, 0), ("outputs", list, []), ("timestamp", float, 0.0)]
    outputs: Any = msgspec.defstruct(
        "EngineCoreOutputs", fields + [(name, Any, None) for name in MORE[release]]
    )

    class Scheduler:
        def __init__(self) -> None:
            self.requests: dict[str, Request] = {}
            self.width = 1
            """Log-probabilities of a row, of which the sampled token's is the first."""

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
            """Outputs by front end; `scheduler_output` is {name: Sampled}."""
            made: dict[int, list[Any]] = defaultdict(list)
            for number, (name, sampled) in enumerate(scheduler_output.items()):
                if (one := self.requests.get(name)) is None:
                    continue
                logprobs = None
                if one.sampling_params.num_logprobs is not None and model_runner_output.logprobs:
                    logprobs = model_runner_output.logprobs.slice_request(number, len(sampled.tokens))
                said = output(name, [token.id for token in sampled.tokens], logprobs)
                said.events = sampled.events or one.events or None
                one.events = []
                if sampled.ends:
                    said.finish_reason = STOP
                    del self.requests[name]
                made[one.client_index].append(said)
            return {client: outputs(outputs=found) for client, found in made.items()}

        def finish_requests(self, request_ids: Iterable[str] | None, finished_status: Any) -> list[Request]:
            names = list(self.requests) if request_ids is None else list(request_ids)
            return [self.requests.pop(name) for name in names if name in self.requests]

    class EngineCore:
        def __init__(self) -> None:
            self.scheduler = Scheduler()

        def add_request(self, request: Request, request_wave: int = 0) -> None:
            self.scheduler.requests[request.request_id] = request

        def abort_requests(self, request_ids: list[str]) -> None:
            self.scheduler.finish_requests(request_ids, "aborted")

    class EngineCoreProc(EngineCore):
        def __init__(self) -> None:
            super().__init__()
            self.output_queue: Any = queue.Queue()
            self.label = "1"

        def process_output_sockets(self) -> tuple[int, Any]:
            return self.output_queue.get_nowait()  # type: ignore[no-any-return]

        def _send_abort_outputs(self, aborted_reqs: list[Request]) -> None:
            for one in aborted_reqs:
                said = output(one.request_id, [], finish_reason=ABORT)
                self.output_queue.put_nowait((one.client_index, outputs(outputs=[said])))

        def step(self, sampled: Mapping[str, Sampled], now: float, stats: Any = None) -> None:
            for item in self.scheduler.update_from_output(sampled, runner_output(sampled)).items():
                item[1].timestamp, item[1].scheduler_stats = now, stats
                if release != "0.26":
                    item[1].weight_version = self.label
                self.output_queue.put_nowait(item)

    def module(name: str, **values: Any) -> ModuleType:
        made = ModuleType(name)
        made.__dict__.update(values)
        return made

    return {
        made.__name__: made
        for made in (
            module("vllm.v1.engine", EngineCoreOutput=output, EngineCoreOutputs=outputs),
            module("vllm.v1.outputs", LogprobsLists=LogprobsLists),
            module("vllm.v1.request", RequestStatus=SimpleNamespace(FINISHED_ABORTED="aborted")),
            module("vllm.v1.core.sched.scheduler", Scheduler=Scheduler),
            module("vllm.v1.engine.core", EngineCore=EngineCore, EngineCoreProc=EngineCoreProc),
            module("vllm.v1.engine.async_llm", AsyncLLM=type("AsyncLLM", (Front,), {})),
        )
    }


def runner_output(sampled: Mapping[str, Sampled]) -> Any:
    """Rows of all sampled tokens; beside each another token, as when some request asks for the best one."""
    tokens = [token for one in sampled.values() for token in one.tokens]
    starts = np.cumsum([0, *(len(one.tokens) for one in sampled.values())])[:-1].tolist()
    several = any(len(one.tokens) != 1 for one in sampled.values())
    lists = LogprobsLists(
        np.array([[token.id, 7] for token in tokens], np.int32).reshape(-1, 2),
        np.array([[token.logprob, -0.5] for token in tokens], np.float32).reshape(-1, 2),
        np.array([token.rank for token in tokens], np.int64),
        starts if several else None,
    )
    return SimpleNamespace(logprobs=lists)


@dataclass
class Arrived:
    """What a front end has of one request."""

    output_kind: OutputKind = OutputKind.FINAL_ONLY
    tokens: list[Token] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    ended: int | None = None
    parts: int = 0


class Front:
    """vLLM's front ends of one engine, all in one: it takes what lies in the engine's queue."""

    def __init__(self, core: Any, names: Mapping[str, Sequence[str]]) -> None:
        """`names`: the requests that each name of a user stands for."""
        self.core, self.messages = core, 0
        self.request_states: dict[str, Arrived] = {
            one: Arrived() for several in names.values() for one in several
        }
        self.external_req_ids = {name: list(several) for name, several in names.items()}
        self.ended: dict[str, Arrived] = {}
        self.output_processor = self.engine_core = self
        self.stats: list[Any] = []

    def take(self) -> None:
        while not self.core.output_queue.empty():
            _, message = self.core.process_output_sockets()
            self.messages += 1
            self.stats += [message.scheduler_stats] * (message.scheduler_stats is not None)
            for output in message.outputs:
                self._take(output, getattr(message, "weight_version", None))

    def _take(self, output: Any, label: str | None) -> None:
        state = self.request_states.get(output.request_id)
        if state is None:
            return
        rows: Iterable[Any] = output.new_logprobs or ()
        if output.new_logprobs is not None:
            ids, logprobs, ranks, _ = output.new_logprobs
            rows = zip(ids[:, 0].tolist(), logprobs[:, 0].tolist(), ranks.tolist(), strict=True)
            state.tokens += [Token(*row) for row in rows]
            assert [token.id for token in state.tokens[len(state.labels) :]] == output.new_token_ids
        else:
            state.tokens += [Token(one, 0.0, 0) for one in output.new_token_ids]
        state.labels += [label] * len(output.new_token_ids)
        state.events += output.events or []
        state.parts += 1
        if output.finish_reason is not None:
            self._end(output.request_id, output.finish_reason)

    def _end(self, name: str, reason: int) -> None:
        self.ended[name] = state = self.request_states.pop(name)
        state.ended = reason

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        """The engine does it at once; what it then says arrives later."""
        found = getattr(self.core, method)(*args)
        asyncio.get_running_loop().call_later(0.01, self.take)
        return found

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        asked = [request_id] if isinstance(request_id, str) else list(request_id)
        names = asked if internal else [one for name in asked for one in self.external_req_ids.pop(name, ())]
        known = [name for name in names if name in self.request_states]
        for name in known:
            self._end(name, ABORT)
        self.core.abort_requests(known)
