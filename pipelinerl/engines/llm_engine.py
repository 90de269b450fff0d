"""A model bound to an engine: its tokeniser, the ids of a prompt, sampling, counts of calls.

The actor binds a copy to each rollout; `pipelinerl.async_llm` and `llm_logprobs` send the requests. They lie
above this file, and `TrainableLLM`, which adds their functions as methods, lies above them.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

import aiohttp
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from pipelinerl.base.logs import REMARK
from pipelinerl.base.tokenizing import continue_dialogue, encode, load_tokenizer, render_chat
from pipelinerl.engines.errors import EngineUnavailable
from pipelinerl.engines.fleet import Fleet
from pipelinerl.engines.llm_call import LLMCall, LLMOutput, Prompt
from pipelinerl.engines.requests import RULED, SamplingParams, overridden

log = logging.getLogger(__name__)
T = TypeVar("T")
# What `llm.parameters` may hold.
SAMPLING_KEYS = tuple(one.name for one in fields(SamplingParams))
# What of it the run decides, and changes the probability of a token.
RESHAPING_KEYS = tuple(name for name in RULED if name not in ("seed", "ignore_eos"))


def _token_from_environment() -> str:
    return os.environ.get("PIPELINERL_LLM_TOKEN") or os.environ.get("OPENAI_API_KEY") or ""


def several(name: str, value: Any, kind: type) -> tuple[Any, ...]:
    """One value, or several, as OpenAI's `stop`; raises ValueError for one of another kind."""
    one = isinstance(value, str | bytes) or not isinstance(value, Sequence)
    values = () if value is None else (value,) if one else tuple(value)
    for one in values:
        if not isinstance(one, kind) or isinstance(one, bool) or one == "":
            allowed = "a text or several, none empty" if kind is str else "an id or several"
            raise ValueError(f"llm.parameters.{name}={value!r}: {one!r} ends nothing; give {allowed}")
    return values


_TOOLS_LOOKED_FOR: set[str] = set()
"""Models of this process whose first prompt with tools was compared with the same one without."""
Runner = Callable[[Callable[[aiohttp.ClientSession], Awaitable[Any]]], Any]


@dataclass(slots=True)
class _Use:
    """What one copy of the model is bound to, and how often it was asked."""

    fleet: Fleet | None = None
    runner: Runner | None = None
    seed: int | None = None
    parameters: dict[str, Any] | None = None
    """Those of the run, which the rollout may change in its copy."""
    requests: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class EngineLLM(BaseModel):
    """A `TrainableLLM` without its methods that ask; the functions that ask take either."""

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

    def bind(self, fleet: Fleet, engine: str, seed: int | None = None, runner: Runner | None = None) -> Self:
        """A copy for one rollout on `engine`.

        With a seed, its n-th call samples with a seed of its own. `runner` runs a call on the run's event
        loop from another thread, for rollouts that are plain functions.
        """
        # `model_copy` is shallow: with the same dict, a rollout that changes its parameters would change
        # everybody's.
        copy = self.model_copy(update={"parameters": dict(self.parameters), "base_url": engine})
        copy._use = _Use(fleet, runner, seed, dict(self.parameters))
        return copy

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """A copy with parameters of its own, on the same engine, as `copy.deepcopy` makes upstream's."""
        # The run's engines and event loop cannot be copied. Calls stay counted in one place, because the n-th
        # of a rollout has the n-th seed, whichever copy makes it.
        memo = {} if memo is None else memo
        memo |= {id(shared): shared for shared in (self._use, self.tokenizer)}
        return super().__deepcopy__(memo)

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
        """Tokens of a text with the special ones that the tokeniser adds, or of messages.

        Messages are a prompt unless the assistant's is the last.
        """
        if isinstance(messages, str):
            return len(self.load_tokenizer()(messages)["input_ids"])
        asked = not messages or messages[-1].get("role") != "assistant"
        return len(encode(self.load_tokenizer(), self.render(Prompt(messages=messages), asked)))

    def get_base_url(self) -> str:
        return self.base_url.rstrip("/")

    def get_info(self) -> dict[str, Any]:
        return {
            "model_name": self.model_name,
            "parameters": dict(self.parameters),
            "context_size": self.context_size,
        }

    def get_stats(self) -> dict[str, float]:
        """Totals of this copy: calls, prompt tokens, output tokens."""
        use = self._use
        return {"calls": use.calls, "prompt_tokens": use.prompt_tokens, "output_tokens": use.output_tokens}

    def render(self, prompt: Prompt, generation_prompt: bool = True) -> str:
        def rendered(tools: list[dict[str, Any]] | None) -> str:
            return render_chat(
                self.load_tokenizer(),
                prompt.messages,
                tools=tools,
                generation_prompt=generation_prompt,
                template_kwargs=self.chat_template_kwargs,
            )

        text = rendered(prompt.tools)
        if prompt.tools and self.model_name not in _TOOLS_LOOKED_FOR:
            _TOOLS_LOOKED_FOR.add(self.model_name)
            if rendered(None) == text:
                log.warning(
                    "the chat template of %s leaves out the tools of a prompt, so the model never sees them; "
                    "describe them in a message, or use a model whose template shows tools",
                    self.model_name or self.tokenizer_name,
                    extra=REMARK,
                )
        return text

    def prompt_ids(self, prompt: Prompt) -> np.ndarray:
        """The ids that go to the engine, int32 `[P]`."""
        if prompt.token_ids:
            return np.array(prompt.token_ids, np.int32)
        return encode(self.load_tokenizer(), self.render(prompt))

    def chat_fields(self, prompt: Prompt, sampling: SamplingParams) -> dict[str, Any]:
        """A request to an engine's chat route: what token ids cannot say (tools, a format of the answer).

        The engine renders its own template. Ids and log-probabilities are asked for, so that the answer can
        be trained.
        """
        optional = {
            "tools": prompt.tools,
            "response_format": prompt.response_format,
            "chat_template_kwargs": self.chat_template_kwargs or None,
        }
        return {
            "messages": prompt.messages,
            "logprobs": True,
            "return_token_ids": True,
            # vLLM then names each log-probability by the id, so that `answers` can check the pairing.
            "return_tokens_as_token_ids": True,
            "stream": False,
            **sampling.fields(),
            **{name: value for name, value in optional.items() if value is not None},
        }

    async def retried(
        self, ask: Callable[[], Awaitable[T]], may_again: Callable[[], bool] = lambda: True
    ) -> T:
        """The answer of `ask`, tried `max_retries` times more while the engine is away and `may_again`."""
        for attempt in range(self.max_retries):
            try:
                return await ask()
            except EngineUnavailable:
                if not may_again():
                    raise
                # An engine that is replaced is away for some time: each pause is twice the one before.
                await asyncio.sleep(self.base_delay * 2**attempt)
        return await ask()

    def continue_prompt(
        self, call: LLMCall, messages: list[dict[str, Any]], context: int | None = None
    ) -> Prompt:
        """The next prompt of a dialogue, by appending to what the engine saw and sampled in `call`.

        With `context`, ValueError for messages that cannot fit into as many tokens.
        """
        ids = continue_dialogue(
            self.load_tokenizer(),
            call.prompt.messages,
            call.prompt_token_ids,
            call.output_token_ids,
            messages,
            self.chat_template_kwargs,
            context,
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
        unknown = sorted(self.parameters.keys() - set(SAMPLING_KEYS))
        if unknown:
            raise ValueError(
                f"llm.parameters.{unknown[0]} is no sampling parameter; allowed: {', '.join(SAMPLING_KEYS)}"
            )
        room = self.context_size - prompt_tokens
        if room < 1:
            raise ValueError(
                f"the prompt has {prompt_tokens} tokens, the context {self.context_size}; shorten it"
            )
        chosen = dict(self.parameters)
        # An engine refuses a request whose `max_tokens` does not fit behind its prompt, so it is cut to the
        # room.
        given = chosen.get("max_tokens") if max_tokens_override is None else max_tokens_override
        chosen["max_tokens"] = room if given is None else min(int(given), room)
        # YAML gives lists; `SamplingParams` must be hashable, since its JSON is cached.
        for name, kind in (("stop_token_ids", int), ("stop", str)):
            if name in chosen:
                chosen[name] = several(name, chosen[name], kind)
        use = self._use
        if use.seed is not None and "seed" not in chosen:
            # Counted when a call starts: calls that run side by side must not draw the same tokens.
            # The factor, that of Knuth's multiplicative hash, keeps the calls of a rollout from repeating
            # those of rollouts with neighbouring seeds; the mask leaves 31 bits.
            chosen["seed"] = (use.seed + use.requests * 0x9E3779B1) & 0x7FFFFFFF
        use.requests += 1
        return SamplingParams(**chosen)

    def reshaped(self, sampling: SamplingParams) -> str:
        """What of `sampling` gives tokens other probabilities than the run's parameters do; empty if none."""
        run = self._use.parameters
        if run is None or run == self.parameters:
            return ""
        asked = {name: getattr(sampling, name) for name in RESHAPING_KEYS}
        return ", ".join(f"{name}={value}" for name, value in overridden(asked, run).items())

    def count_call(self, prompt_tokens: int, output_tokens: int) -> None:
        use = self._use
        use.calls += 1
        use.prompt_tokens += prompt_tokens
        use.output_tokens += output_tokens

    def log_output(
        self,
        prompt: Prompt,
        output: LLMOutput,
        cached: bool = False,
        count_tokens: bool = True,
        prompt_length_tokens: int = -1,
        output_length_tokens: int = -1,
    ) -> LLMCall:
        """An `LLMCall` for an answer that came from elsewhere, with its lengths counted or as given."""
        if count_tokens:
            reply = {"role": "assistant", "content": output.content or ""}
            prompt_length_tokens = self.count_tokens(prompt.messages)
            whole = self.count_tokens([*prompt.messages, reply]) if output.content else prompt_length_tokens
            output_length_tokens = whole - prompt_length_tokens
        return LLMCall(
            prompt=prompt,
            output=output,
            cached=cached,
            prompt_length_tokens=prompt_length_tokens,
            output_length_tokens=output_length_tokens,
            llm_info=self.get_info(),
        )
