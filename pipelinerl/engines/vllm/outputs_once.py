"""Lets an engine hand over what a request has sampled in a few parts instead of token by token.

vLLM's engine process encodes every token by itself for the HTTP process that asked: with its log-probability
that takes longer than all else that is done for a token in Python, and a request that is answered as a whole
gains nothing from it. Here such a request's ids, log-probabilities and experts stay in the engine's process.
They are handed over, as one list and three arrays, when they are as many as were handed over before, after
`HELD_S`, and with whatever else an output says: its first token, its end, an abort. vLLM takes several tokens
in one output wherever it samples several in a step, so nothing changes for who receives them.

What is handed over by itself: streamed requests, those with stop strings (which the HTTP process looks for in
the text) and with log-probabilities of other tokens than the sampled ones. vLLM's plug-in puts this into
place where the launcher has set `SWITCH`; a vLLM that has other interfaces than those of 0.26 to 0.33 is left
as it is, with a line in its log.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any

import numpy as np

SWITCH = "PIPELINERL_OUTPUTS_ONCE"
"""Variable that is `1` in the environment of engines that are to do so."""
HELD_S = 2.0
"""After which a running request's tokens are handed over: what an engine counts as generated is never older,
and who watches it for a stall sees it go on."""
END_S = 5.0
"""For the requests of an abort to end with all they have sampled; then they end with what is there."""
_LOOK_AGAIN_S = 0.002
FINAL_ONLY = 2
"""`RequestOutputKind` of a request that is answered once."""
END = "end_with_outputs"
"""Method of the engine's process, called by its HTTP processes."""
HELD_FIELDS = ("request_id", "new_token_ids", "new_logprobs", "routed_experts")
LISTS = ("logprob_token_ids", "logprobs", "sampled_token_ranks", "cu_num_generated_tokens")
CORE, FRONT, SCHEDULER = "vllm.v1.engine.core", "vllm.v1.engine.async_llm", "vllm.v1.core.sched.scheduler"
MESSAGES, OUTPUTS = "vllm.v1.engine", "vllm.v1.outputs"
# By these parameters the functions that are wrapped or called here have to begin.
PARAMETERS = {
    f"{CORE}.EngineCore.add_request": ("self", "request"),
    f"{CORE}.EngineCore.abort_requests": ("self", "request_ids"),
    f"{CORE}.EngineCoreProc._send_abort_outputs": ("self", "aborted_reqs"),
    f"{SCHEDULER}.Scheduler.update_from_output": ("self", "scheduler_output", "model_runner_output"),
    f"{SCHEDULER}.Scheduler.finish_requests": ("self", "request_ids", "finished_status"),
    f"{FRONT}.AsyncLLM.abort": ("self", "request_id", "internal"),
}
# vLLM writes out only what its own loggers say.
log = logging.getLogger(f"vllm.{__name__}")
Row = tuple[tuple[list[int], list[float], list[int]], int]
"""Ids, log-probabilities and ranks that a step sampled, and the place of one token in them."""


class Step:
    """Log-probabilities of one step, in the place of vLLM's `LogprobsLists`.

    vLLM cuts out the rows of each request, three slices of arrays that take 1.7 µs. A request whose rows are
    held needs none.
    """

    __slots__ = ("columns", "lists")

    def __init__(self, lists: Any) -> None:
        self.lists = lists
        # Copies: the arrays may lie in pinned memory that the next steps want. Sampled tokens come first.
        self.columns = (
            lists.logprob_token_ids[:, 0].tolist(),
            lists.logprobs[:, 0].tolist(),
            lists.sampled_token_ranks.tolist(),
        )

    def slice_request(self, request: int, tokens: int) -> "tuple[Step, int, int]":
        """As vLLM asks for the rows of the request with this number: the step, the first row and how many."""
        starts = self.lists.cu_num_generated_tokens
        return self, request if starts is None else starts[request], tokens

    def cut(self, first: int, tokens: int) -> Any:
        """What vLLM would have cut out."""
        rows, lists = slice(first, first + tokens), self.lists
        return type(lists)(
            lists.logprob_token_ids[rows], lists.logprobs[rows], lists.sampled_token_ranks[rows], None
        )


class Held:
    """Tokens of one request that have been sampled and not handed over."""

    __slots__ = ("experts", "ids", "label", "rows", "sent", "since")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.rows: list[Row] = []
        self.experts: list[np.ndarray] = []
        self.label: str | None = None
        """Weight version of all of them."""
        self.sent = 0
        """Tokens handed over before."""
        self.since = 0.0
        """When the last of these were, in seconds of the monotonic clock."""

    def add(self, output: Any, label: str | None) -> None:
        self.ids += output.new_token_ids
        if output.new_logprobs is not None:
            step, first, tokens = output.new_logprobs
            if tokens == 1:
                self.rows.append((step.columns, first))
            else:
                self.rows += [(step.columns, place) for place in range(first, first + tokens)]
        if output.routed_experts is not None:
            self.experts.append(output.routed_experts)
        self.label = label

    def move_into(self, output: Any, lists: Callable[..., Any]) -> Any:
        """`output` with all that is held and nothing else; `lists` makes vLLM's `LogprobsLists`."""
        output.new_token_ids = self.ids
        output.new_logprobs = None
        if self.rows:
            ids, logprobs, ranks = ([columns[one][place] for columns, place in self.rows] for one in range(3))
            output.new_logprobs = lists(
                np.array(ids, np.int32)[:, None], np.array(logprobs, np.float32)[:, None], np.array(ranks)
            )
        output.routed_experts = np.concatenate(self.experts) if self.experts else None
        self.sent += len(self.ids)
        self.ids, self.rows, self.experts = [], [], []
        return output


class OutputQueue:
    """What the engine's process puts its messages into: it holds back outputs that can wait.

    A message is `(HTTP process, EngineCoreOutputs)`. All requests are added, ended and put by one thread.
    """

    def __init__(self, queue: Any, messages: Any, lists: Callable[..., Any]) -> None:
        """`queue` takes what is handed over; `messages` is the module `vllm.v1.engine`."""
        self._queue, self._messages, self._lists = queue, messages, lists
        self._held: dict[str, Held] = {}
        fields = messages.EngineCoreOutput.__struct_fields__
        self._rest = attrgetter(*(name for name in fields if name not in HELD_FIELDS))
        self._no_rest = self._rest(messages.EngineCoreOutput("", []))
        fields = messages.EngineCoreOutputs.__struct_fields__
        without = ("engine_index", "outputs", "timestamp", "weight_version")
        self._more = attrgetter(*(name for name in fields if name not in without))
        self._no_more = self._more(messages.EngineCoreOutputs())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def hold(self, request: Any) -> None:
        """From now on hold outputs of this request, if they can be held."""
        sampling = request.sampling_params
        if (
            sampling is not None
            and sampling.output_kind.value == FINAL_ONLY
            and not sampling.stop
            and sampling.num_logprobs in (None, 0)
            and not request.resumable  # more is to come after its end
        ):
            self._held[request.request_id] = Held()

    def forget(self, requests: Iterable[str]) -> None:
        """These have ended without an output: nobody wants theirs."""
        for name in requests:
            self._held.pop(name, None)

    def put_nowait(self, item: Any) -> None:
        """Hand over what cannot wait, behind what was held of other weights."""
        if isinstance(item, bytes) or not item[1].outputs:
            self._queue.put_nowait(item)
            return
        client, message = item
        label, now = getattr(message, "weight_version", None), message.timestamp
        earlier: dict[str | None, list[Any]] = {}
        ready = []
        for output in message.outputs:
            held = self._held.get(output.request_id)
            if held is None:
                if type(output.new_logprobs) is tuple:
                    step, first, tokens = output.new_logprobs
                    output.new_logprobs = step.cut(first, tokens)
                ready.append(output)
                continue
            if held.ids and held.label != label:  # a message has one label
                alone = self._messages.EngineCoreOutput(output.request_id, [])
                earlier.setdefault(held.label, []).append(held.move_into(alone, self._lists))
            held.add(output, label)
            if (
                len(held.ids) < held.sent
                and now - held.since < HELD_S
                and self._rest(output) == self._no_rest
            ):
                continue
            held.since = now
            ready.append(held.move_into(output, self._lists))
            if output.finish_reason is not None:
                del self._held[output.request_id]
        for old, outputs in earlier.items():
            before = self._messages.EngineCoreOutputs(outputs=outputs, timestamp=now)
            if old is not None:
                before.weight_version = old
            self._queue.put_nowait((client, before))
        message.outputs = ready
        if ready or self._more(message) != self._no_more:
            self._queue.put_nowait(item)


def hand_over_once() -> None:
    """Put it into place in a process of vLLM; again, it does nothing."""
    why = misfit()
    if why is not None:
        log.warning("outputs are handed over token by token: %s", why)
        return
    core, front = import_module(CORE), import_module(FRONT)
    if not hasattr(core.EngineCore, END):
        _wrap_core(core.EngineCore, import_module(MESSAGES), import_module(OUTPUTS).LogprobsLists)
        _wrap_front(front.AsyncLLM)


def misfit() -> str | None:
    """What this vLLM lacks, in a few words; None where all is as it has to be."""
    messages, outputs = import_module(MESSAGES), import_module(OUTPUTS)
    for kind, wanted in (
        (messages.EngineCoreOutput, (*HELD_FIELDS, "finish_reason")),
        (messages.EngineCoreOutputs, ("outputs", "timestamp")),
    ):
        if lacking := set(wanted) - set(kind.__struct_fields__):
            return f"{kind.__name__} has no {', '.join(sorted(lacking))}"
    if outputs.LogprobsLists._fields != LISTS:
        return f"LogprobsLists is {', '.join(outputs.LogprobsLists._fields)}"
    for dotted, parameters in PARAMETERS.items():
        module, owner, name = dotted.rsplit(".", 2)
        found = getattr(getattr(import_module(module), owner, None), name, None)
        if found is None:
            return f"{owner} has no {name}"
        if (taken := tuple(inspect.signature(found).parameters))[: len(parameters)] != parameters:
            return f"{owner}.{name} takes {', '.join(taken)}"
    sends = import_module(CORE).EngineCoreProc.process_output_sockets
    if "output_queue" not in sends.__code__.co_names:
        return "EngineCoreProc sends what is in another queue than output_queue"
    return None


def _wrap_core(engine: Any, messages: Any, lists: Callable[..., Any]) -> None:
    """Of `EngineCore`, which every engine's process derives from."""
    add, abort = engine.add_request, engine.abort_requests

    def add_request(self: Any, request: Any, *rest: Any, **named: Any) -> Any:
        added = add(self, request, *rest, **named)
        queue = getattr(self, "output_queue", None)
        if queue is None:  # an engine in the process that asks: it encodes nothing
            return added
        if not isinstance(queue, OutputQueue):
            self.output_queue = queue = OutputQueue(queue, messages, lists)
            _wrap_steps(self.scheduler)
        queue.hold(request)
        return added

    def abort_requests(self: Any, request_ids: Any) -> None:
        abort(self, request_ids)
        if isinstance(queue := getattr(self, "output_queue", None), OutputQueue):
            queue.forget([request_ids] if isinstance(request_ids, str) else request_ids)

    def end_with_outputs(self: Any, request_ids: list[str]) -> None:
        # As a pause that aborts does it with all requests.
        status = import_module("vllm.v1.request").RequestStatus.FINISHED_ABORTED
        self._send_abort_outputs(self.scheduler.finish_requests(request_ids, status))

    engine.add_request, engine.abort_requests = add_request, abort_requests
    setattr(engine, END, end_with_outputs)


def _wrap_steps(scheduler: Any) -> None:
    """Let it cut no rows out of the log-probabilities of a step."""
    update = scheduler.update_from_output

    def update_from_output(scheduler_output: Any, model_runner_output: Any) -> Any:
        if model_runner_output.logprobs is not None:
            model_runner_output.logprobs = Step(model_runner_output.logprobs)
        return update(scheduler_output, model_runner_output)

    scheduler.update_from_output = update_from_output


def _wrap_front(front: Any) -> None:
    """Of `AsyncLLM`, which ends aborted requests with what has arrived: let what is held arrive before."""
    abort: Callable[..., Awaitable[None]] = front.abort

    async def abort_with_outputs(self: Any, request_id: Any, internal: bool = False) -> None:
        asked = [request_id] if isinstance(request_id, str) else list(request_id)
        # A single name of its own: the one who asked has gone, and nobody reads the answer.
        if not (internal and isinstance(request_id, str)):
            await _end(self, asked, internal)
        await abort(self, asked, internal)

    front.abort = abort_with_outputs


async def _end(front: Any, asked: Sequence[str], internal: bool) -> None:
    processor = front.output_processor
    names = asked if internal else [name for one in asked for name in processor.external_req_ids.get(one, ())]
    states = processor.request_states
    whole = [one for one in names if one in states and states[one].output_kind.value == FINAL_ONLY]
    if not whole:
        return
    await front.engine_core.call_utility_async(END, whole)
    end = time.monotonic() + END_S
    while any(one in states for one in whole):
        if time.monotonic() > end:
            log.warning("%d aborted requests end without their last tokens after %g s", len(whole), END_S)
            return
        await asyncio.sleep(_LOOK_AGAIN_S)
