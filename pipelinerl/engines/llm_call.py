"""A question to a model and its answer, as values: prompts, messages, sampled tokens, calls.

Domains build `Prompt` and read `LLMCall`; `pipelinerl.llm` and `pipelinerl.async_llm` fill them in.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Self, overload
from uuid import uuid4

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from pipelinerl.rollouts import Int32Array, Routes, VersionSpan


# The ids of an answer are an array and come back in the next prompt of a dialogue; pydantic takes lists.
def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


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


class _Message(BaseModel):
    """Fields that are also read as those of a dict, which litellm's messages allow policies of upstream."""

    def __contains__(self, name: object) -> bool:
        return name in type(self).model_fields

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def get(self, name: str, default: Any = None) -> Any:
        """A field, or `default`."""
        return getattr(self, name) if name in self else default


class ToolFunction(_Message):
    name: str
    arguments: str


class ToolCall(_Message):
    id: str
    type: str = "function"
    function: ToolFunction


class LLMOutput(_Message):
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
    routed_experts: Routes = Field(default=None, exclude=True)
    """Experts of the prompt's and the sampled tokens, where the engine says them."""
    tagged: str | None = Field(default=None, exclude=True)
    """`output.content` with the tags of thoughts, or the closing stop text, that it lacks; else None."""
    _asked: Prompt | None = PrivateAttr(default=None)

    def answers(self, prompt: Prompt) -> Self:
        """Note what was asked, since code of a domain may change `prompt` afterwards."""
        kept = {"messages": [dict(message) for message in prompt.messages]}
        self._asked = prompt.model_copy(update=kept)
        return self

    @property
    def prompt_is_another(self) -> bool:
        """Whether `prompt` is no longer what was asked. Messages added at its end make it no other one."""
        asked, now = self._asked, self.prompt
        if asked is None:
            return False
        began = now.messages[: len(asked.messages)]
        return (asked.messages, asked.tools, asked.token_ids) != (began, now.tools, now.token_ids)

    @property
    def completion(self) -> str:
        """What the model wrote, as judges read it (`base.thoughts.answer_part`).

        It is `output.content`, and begins with `<think>` where the prompt ends with it and `</think>` was not
        sampled. It ends with the stop text if that closes what was opened, as `</answer>` does. Tags of
        thoughts stand in it also where they are special tokens, which `content` leaves out.
        """
        return (self.output.content or "") if self.tagged is None else self.tagged

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
    """An answer as a stream of events. The call can be asked for again after its event was read."""

    def __init__(self, events: Iterator[LLMEvent], prompt: Prompt) -> None:
        self.events, self.prompt = events, prompt
        self.llm_call: LLMCall | None = None

    def __iter__(self) -> Iterator[LLMEvent]:
        return self

    def __next__(self) -> LLMEvent:
        event = next(self.events)
        self.llm_call = event.llm_call or self.llm_call
        return event

    def get_llm_call(self) -> LLMCall:
        while self.llm_call is None:
            if next(self, None) is None:
                raise ValueError("the answer's stream ended without a call")
        return self.llm_call

    def get_output(self) -> LLMOutput:
        return self.get_llm_call().output

    def get_text(self) -> str:
        content = self.get_output().content
        if content is None:
            raise ValueError("the answer has no text")
        return content
