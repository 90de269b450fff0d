"""What rollout code holds in its hands: prompts, calls, and the model bound to an engine."""

import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, overload
from uuid import uuid4

import aiohttp
import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from pipelinerl.inference.client import SamplingParams
from pipelinerl.inference.fleet import Fleet
from pipelinerl.llm_logprobs import Scores, batch_logprobs, chat_ids, text_ids
from pipelinerl.rollouts import Int32Array, VersionSpan
from pipelinerl.tokenizing import continue_dialogue, encode, load_tokenizer, render_chat

SAMPLING_KEYS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stop",
)
_SAMPLING_KEYS = frozenset(SAMPLING_KEYS)


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _token_from_environment() -> str:
    return os.environ.get("PIPELINERL_LLM_TOKEN") or os.environ.get("OPENAI_API_KEY") or ""


class Prompt(BaseModel):
    """Messages for the chat template, or `token_ids` that are sent as they are (append-only dialogues)."""

    id: str = Field(default_factory=lambda: str(uuid4()))
    tools: list[dict[str, Any]] | None = None
    messages: list[dict[str, Any]] = Field(default_factory=list)
    token_ids: Annotated[list[int], BeforeValidator(_listed)] = Field(default_factory=list)
    response_format: dict[str, Any] | None = None

    @classmethod
    def from_user_message(cls, content: str) -> "Prompt":
        return cls(messages=[{"role": "user", "content": content}])

    def __bool__(self) -> bool:
        return bool(self.messages or self.token_ids)


class ToolFunction(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    function: ToolFunction


class LLMOutput(BaseModel):
    """The assistant's message."""

    role: str = "assistant"
    content: str | None = None
    tool_calls: list[ToolCall] | None = None


class TokenLogprob(BaseModel):
    logprob: float
    token_id: int


class TokenLogprobs(Sequence[TokenLogprob]):
    """Sampled ids, int32 `[T]`, and log-probabilities, float32 `[T]`, read as a list of `TokenLogprob`."""

    def __init__(self, token_ids: np.ndarray, logprobs: np.ndarray) -> None:
        if len(token_ids) != len(logprobs):
            raise ValueError(f"{len(token_ids)} token ids but {len(logprobs)} log-probabilities")
        self.token_ids = np.asarray(token_ids, np.int32)
        self.logprobs = np.asarray(logprobs, np.float32)

    @classmethod
    def of(cls, items: Sequence[TokenLogprob]) -> "TokenLogprobs":
        if isinstance(items, cls):
            return items
        return cls(
            np.array([t.token_id for t in items], np.int32), np.array([t.logprob for t in items], np.float32)
        )

    def __len__(self) -> int:
        return len(self.token_ids)

    @overload
    def __getitem__(self, index: int) -> TokenLogprob: ...
    @overload
    def __getitem__(self, index: slice) -> "TokenLogprobs": ...
    def __getitem__(self, index: int | slice) -> "TokenLogprob | TokenLogprobs":
        if isinstance(index, slice):
            return TokenLogprobs(self.token_ids[index], self.logprobs[index])
        return TokenLogprob(token_id=int(self.token_ids[index]), logprob=float(self.logprobs[index]))


class LLMCall(BaseModel):
    """One request and its answer. Nothing keeps a history of calls; keep those you need."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    timestamp: str = Field(default_factory=lambda: datetime.now(UTC).isoformat())
    prompt: Prompt
    output: LLMOutput
    prompt_length_tokens: int = -1
    output_length_tokens: int = -1
    cached: bool = False
    llm_info: dict[str, Any] = Field(default_factory=dict)
    cost: float = 0
    logprobs: TokenLogprobs | list[TokenLogprob] = Field(
        default_factory=list, exclude=True, union_mode="left_to_right"
    )
    prompt_token_ids: Int32Array = Field(default_factory=lambda: np.empty(0, np.int32))
    """The ids the engine saw."""
    weight_versions: list[VersionSpan] = Field(default_factory=list)

    @property
    def output_token_ids(self) -> np.ndarray:
        """The ids the engine sampled, int32 `[T]`."""
        return TokenLogprobs.of(self.logprobs).token_ids


class LLMEvent(BaseModel):
    """A piece of an answer, or the whole of it."""

    chunk: str | None = None
    output: LLMOutput | None = None
    llm_call: LLMCall | None = None


class LLMStream:
    """An answer as a stream of events."""

    def __init__(self, events: Iterator[LLMEvent], prompt: Prompt) -> None:
        self.events, self.prompt = events, prompt

    def __iter__(self) -> Iterator[LLMEvent]:
        return self.events

    def __next__(self) -> LLMEvent:
        return next(self.events)

    def get_llm_call(self) -> LLMCall:
        for event in self.events:
            if event.llm_call is not None:
                return event.llm_call
        raise ValueError("the answer's stream was already read to its end")

    def get_output(self) -> LLMOutput:
        return self.get_llm_call().output

    def get_text(self) -> str:
        content = self.get_output().content
        if content is None:
            raise ValueError("the answer has no text")
        return content


Runner = Callable[[Callable[[aiohttp.ClientSession], Awaitable[Any]]], Any]


@dataclass(slots=True)
class _Use:
    """What one copy of the model is bound to, and how often it was asked."""

    fleet: Fleet | None = None
    runner: Runner | None = None
    seed: int | None = None
    requests: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class TrainableLLM(BaseModel):
    """A model behind an engine. In a rollout it comes bound to one, with the run's sampling `parameters`.

    Outside a run, give `base_url` (and `model_name` or `tokenizer_name` for the tokeniser).
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=())

    model_name: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    context_size: int = 32000
    tokenizer_name: str = ""
    tokenizer: Any = Field(default=None, exclude=True, repr=False)
    base_url: str = ""
    api_token: str = Field(default_factory=_token_from_environment, exclude=True, repr=False)
    collect_logprobs: bool = False
    max_parallel_requests: int = 32
    max_retries: int = 5
    base_delay: float = 0.5
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    _use: _Use = PrivateAttr(default_factory=_Use)

    def bind(
        self, fleet: Fleet, engine: str, seed: int | None = None, runner: Runner | None = None
    ) -> "TrainableLLM":
        """A copy for one rollout on `engine`.

        With a seed, its n-th call samples with a seed of its own. `runner` runs a call on the run's event
        loop from another thread, for rollouts that are plain functions.
        """
        copy = self.model_copy(update={"parameters": dict(self.parameters), "base_url": engine})
        copy._use = _Use(fleet, runner, seed)
        return copy

    @property
    def fleet(self) -> Fleet | None:
        """The run's engines; None outside a run."""
        return self._use.fleet

    @property
    def runner(self) -> Runner | None:
        return self._use.runner

    def load_tokenizer(self) -> Any:
        if self.tokenizer is None:
            self.tokenizer = load_tokenizer(self.tokenizer_name or self.model_name)
        return self.tokenizer

    def count_tokens(self, messages: list[dict[str, Any]] | str) -> int:
        """Tokens of a text, or of messages with the template around them."""
        text = messages if isinstance(messages, str) else self.render(Prompt(messages=messages), False)
        return len(encode(self.load_tokenizer(), text))

    def get_base_url(self) -> str:
        return self.base_url.rstrip("/")

    def get_info(self) -> dict[str, Any]:
        return {
            "model_name": self.model_name,
            "parameters": self.parameters,
            "context_size": self.context_size,
        }

    def get_stats(self) -> dict[str, float]:
        """Totals of this copy: calls, prompt tokens, output tokens."""
        use = self._use
        return {"calls": use.calls, "prompt_tokens": use.prompt_tokens, "output_tokens": use.output_tokens}

    def render(self, prompt: Prompt, generation_prompt: bool = True) -> str:
        return render_chat(
            self.load_tokenizer(),
            prompt.messages,
            tools=prompt.tools,
            generation_prompt=generation_prompt,
            template_kwargs=self.chat_template_kwargs,
        )

    def prompt_ids(self, prompt: Prompt) -> np.ndarray:
        """The ids that go to the engine, int32 `[P]`."""
        if prompt.token_ids:
            return np.array(prompt.token_ids, np.int32)
        return encode(self.load_tokenizer(), self.render(prompt))

    def continue_prompt(self, call: LLMCall, messages: list[dict[str, Any]]) -> Prompt:
        """The next prompt of a dialogue, by appending to what the engine saw and sampled in `call`."""
        ids = continue_dialogue(
            self.load_tokenizer(),
            call.prompt.messages,
            call.prompt_token_ids,
            call.output_token_ids,
            messages,
            self.chat_template_kwargs,
        )
        reply = {"role": "assistant", "content": call.output.content or ""}
        # Nothing to validate: the messages are those of a prompt and the ids come from an array.
        return Prompt.model_construct(
            messages=[*call.prompt.messages, reply, *messages], token_ids=ids.tolist()
        )

    def sampling(self, prompt_tokens: int, max_tokens_override: int | None = None) -> SamplingParams:
        """Sampling of the next call: `parameters`, with no more tokens than the context has left.

        Raises ValueError for a parameter that is not about sampling, and for a prompt that fills the context.
        """
        if not self.parameters.keys() <= _SAMPLING_KEYS:
            unknown = sorted(self.parameters.keys() - _SAMPLING_KEYS)
            raise ValueError(
                f"llm.parameters.{unknown[0]} is no sampling parameter; allowed: {', '.join(SAMPLING_KEYS)}"
            )
        room = self.context_size - prompt_tokens
        if room < 1:
            raise ValueError(
                f"the prompt has {prompt_tokens} tokens, the context {self.context_size}; shorten it"
            )
        chosen = dict(self.parameters)
        wanted = max_tokens_override or chosen.get("max_tokens") or room
        chosen["max_tokens"] = min(int(wanted), room)
        for name in ("stop_token_ids", "stop"):
            if name in chosen:
                chosen[name] = tuple(chosen[name])
        use = self._use
        if use.seed is not None and "seed" not in chosen:
            # Counted when a call starts: calls that run side by side must not draw the same tokens.
            chosen["seed"] = (use.seed + use.requests * 0x9E3779B1) & 0x7FFFFFFF
        use.requests += 1
        return SamplingParams(**chosen)

    def count_call(self, prompt_tokens: int, output_tokens: int) -> None:
        use = self._use
        use.calls += 1
        use.prompt_tokens += prompt_tokens
        use.output_tokens += output_tokens

    def log_output(self, prompt: Prompt, output: LLMOutput) -> LLMCall:
        """An `LLMCall` for an answer that came from elsewhere."""
        return LLMCall(prompt=prompt, output=output, llm_info=self.get_info())

    async def agenerate(self, prompt: Prompt, session: aiohttp.ClientSession) -> LLMStream:
        from pipelinerl.async_llm import llm_async_generate

        call = await llm_async_generate(self, prompt, session)
        return LLMStream(iter([LLMEvent(output=call.output, llm_call=call)]), prompt)

    def generate(self, prompt: Prompt) -> LLMStream:
        """The same from code without an event loop; a run's plain rollout functions use it."""
        from pipelinerl.async_llm import generate_blocking

        call = generate_blocking(self, prompt)
        return LLMStream(iter([LLMEvent(output=call.output, llm_call=call)]), prompt)

    def get_batch_logprobs_token_ids(
        self, prompt_token_ids: list[list[int]], completion_token_ids: list[list[int]]
    ) -> list[Scores]:
        """Log-probabilities of completions at temperature 1; see `pipelinerl.llm_logprobs`.

        Like the four methods below, for code without an event loop.
        """
        from pipelinerl.async_llm import run_blocking

        return run_blocking(
            self, lambda session: batch_logprobs(self, prompt_token_ids, completion_token_ids, session)
        )

    def get_logprobs_token_ids(self, prompt_token_ids: list[int], completion_token_ids: list[int]) -> Scores:
        (scores,) = self.get_batch_logprobs_token_ids([prompt_token_ids], [completion_token_ids])
        return scores

    def get_logprobs_complete(self, prompt: str, output: str) -> Scores:
        return self.get_logprobs_token_ids(*text_ids(self, prompt, output))

    def get_logprobs_chat_complete(self, prompt: Prompt, output: LLMOutput) -> Scores:
        return self.get_logprobs_token_ids(*chat_ids(self, prompt, output))

    def get_logprobs(self, prompt: str | Prompt, output: str | LLMOutput) -> Scores:
        """Of a plain text after a plain prompt, or of a message after a chat prompt."""
        if isinstance(prompt, str):
            return self.get_logprobs_complete(
                prompt, output if isinstance(output, str) else output.content or ""
            )
        return self.get_logprobs_chat_complete(
            prompt, LLMOutput(content=output) if isinstance(output, str) else output
        )

    def quick_response(self, text: str) -> str:
        return self.generate(Prompt.from_user_message(text)).get_text()
