"""The prompts of one request of a recorded program: their answers, whole or while they are sampled.

`routes` and `replies` ask here. What a stream says and what is recorded of it is what an unstreamed answer
would be, so text is sent when nothing that follows can change it.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelinerl.async_llm import ended_text
from pipelinerl.base.tokenizing import begins_in_thoughts
from pipelinerl.base.waits import wait_for
from pipelinerl.engines.answers import UNVERSIONED, LiveAnswer, Tokens
from pipelinerl.engines.llm_call import LLMCall, Prompt, TokenLogprobs
from pipelinerl.engines.llm_engine import EngineLLM, several
from pipelinerl.engines.openai.answers import Piece
from pipelinerl.engines.openai.chat import TextBeforeCalls
from pipelinerl.engines.openai.fields import SharedFields
from pipelinerl.engines.openai.protocol import SamplingFields, require
from pipelinerl.engines.openai.text import OutputText
from pipelinerl.engines.requests import overridden
from pipelinerl.extras.recorder import sampling
from pipelinerl.extras.recorder.session import END_DEADLINE_S, Session


class Changed(RuntimeError):
    """The end of an answer changes text that was sent already; a tokenizer whose decoder looks back."""


@dataclass(frozen=True)
class Asked:
    """The prompts of one request, as they go to the rollout's engine."""

    session: Session
    llm: EngineLLM
    prompts: Sequence[Prompt]
    max_tokens: int | None
    overridden: dict[str, Any]
    fields: SharedFields | SamplingFields
    answered: list[LLMCall] = field(default_factory=list)
    """Of a stream, in the order of their ends."""

    def text(self, call: LLMCall) -> str:
        """An answer's text as the program gets it."""
        return shown(self.llm, call, self.fields)[0]

    async def calls(self) -> list[LLMCall]:
        """The answers. Raises what `Session.ask` raises."""
        return await self.session.ask(self.llm, self.prompts, self.max_tokens, self.overridden)

    async def pieces(self, whole: Callable[[LLMCall], str], tools: bool = False) -> AsyncGenerator[Piece]:
        """Tokens as they are sampled, with the text that is certain; the last piece of each prompt ends it.

        `whole` is the text of an answer as the program gets it. With `tools`, text that may be a call of one
        is held back. Raises as `calls`, also behind the first pieces, and Changed.
        """
        came: asyncio.Queue[tuple[int, Tokens | asyncio.Task[list[LLMCall]]]] = asyncio.Queue()

        def begun(index: int, prompt: Prompt) -> asyncio.Task[list[LLMCall]]:
            live = LiveAnswer(lambda tokens: came.put_nowait((index, tokens)))
            ask = self.session.ask(self.llm, [prompt], self.max_tokens, self.overridden, live)
            task = asyncio.create_task(ask, name=f"streamed call {index}")
            task.add_done_callback(lambda task: came.put_nowait((index, task)))
            return task

        tasks = [begun(index, prompt) for index, prompt in enumerate(self.prompts)]
        told = [_Told(self.llm, self.fields, prompt.token_ids, tools) for prompt in self.prompts]
        try:
            for _ in range(len(tasks)):
                index, what = await came.get()
                while isinstance(what, Tokens):
                    yield told[index].more(index, what)
                    index, what = await came.get()
                (call,) = what.result()
                self.answered.append(call)
                yield told[index].last(index, call, whole(call))
        finally:
            # A program that hung up: what its calls had sampled is recorded before the session goes on.
            for task in tasks:
                task.cancel()
            gone = asyncio.gather(*tasks, return_exceptions=True)
            await wait_for(gone, "streamed calls that were given up", END_DEADLINE_S)


class _Told:
    """What the program was told of one answer."""

    def __init__(
        self, llm: EngineLLM, fields: SharedFields | SamplingFields, prompt_ids: Sequence[int], tools: bool
    ) -> None:
        ends = SamplingFields(
            stop=list(several("stop", llm.parameters.get("stop"), str)),
            include_stop_str_in_output=fields.include_stop_str_in_output,
            skip_special_tokens=fields.skip_special_tokens,
            # What may become a stop string is held back; whether it ends the answer, the engine decides.
            min_tokens=sys.maxsize,
        )
        self._output = OutputText(llm.load_tokenizer().backend_tokenizer, ends)
        opened = tools and begins_in_thoughts(llm.load_tokenizer(), prompt_ids)
        self._before_calls = TextBeforeCalls(opened) if tools else None
        self._sent: list[str] = []
        self._tokens = self._versioned = 0

    def more(self, index: int, tokens: Tokens) -> Piece:
        """Further tokens, which do not end the answer."""
        for token in tokens.ids:
            self._output.add(token, ends=False)
        text = self._output.take()
        if self._before_calls is not None:
            text = self._before_calls.add(text)
        first = not self._tokens
        self._sent.append(text)
        self._tokens += len(tokens.ids)
        if tokens.versions:
            self._versioned = tokens.versions[-1][2]
        return Piece(
            index=index,
            token_ids=tokens.ids,
            logprobs=tokens.logprobs,
            weight_versions=[_span(*one) for one in tokens.versions],
            text=text,
            finish_reason=None,
            stop_reason=None,
            first=first,
        )

    def last(self, index: int, call: LLMCall, whole: str) -> Piece:
        """All that was not told of an answer with the text `whole`. Raises Changed."""
        sent = "".join(self._sent)
        if not whole.startswith(sent):
            raise Changed("the end of the answer changes text that was sent; ask without stream: true")
        return piece(call, whole[len(sent) :], index, self._tokens, self._versioned)


def piece(call: LLMCall, text: str, index: int = 0, start: int = 0, versioned: int = 0) -> Piece:
    """The tokens of a call from output position `start` on, the versions of those from `versioned` on."""
    return Piece(
        index=index,
        token_ids=call.output_token_ids[start:].tolist(),
        logprobs=TokenLogprobs.of(call.logprobs).logprobs[start:].tolist(),
        weight_versions=[
            _span(version, max(first, versioned), behind)
            for version, first, behind in call.weight_versions
            if behind > versioned
        ],
        text=text,
        finish_reason=call.llm_info["finish_reason"],
        stop_reason=call.llm_info["stop_reason"],
        first=start == 0,
    )


def _span(version: int, start: int, end: int) -> dict[str, Any]:
    return {"version": "default" if version == UNVERSIONED else str(version), "start": start, "end": end}


def ruled(session: Session, asked: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The request's fields, and those of them that the run overrides. Raises BadRequest."""
    require((asked.get("n") in (None, 1), f"n {asked.get('n')} is not supported; ask as often as needed"))
    others = overridden(asked, session.llm.parameters)
    if not session.override:
        sampling.refuse(others, session.llm.parameters)
    return asked, others


def bound(
    session: Session, asked: Mapping[str, Any], template_kwargs: dict[str, Any] | None = None
) -> EngineLLM:
    """The rollout's llm with what one request may add; it counts and draws seeds with the rollout's."""
    llm = session.llm
    kwargs = {**llm.chat_template_kwargs, **(template_kwargs or {})}
    changed = {"parameters": sampling.with_ends(llm, asked), "chat_template_kwargs": kwargs}
    return llm.model_copy(update=changed)


def shown(llm: EngineLLM, call: LLMCall, fields: SharedFields | SamplingFields) -> tuple[str, str | None]:
    """The answer's text as the program gets it, without the stop string that ended it; that stop string."""
    stop = call.llm_info["stop_reason"]
    text = ended_text(
        llm.load_tokenizer(),
        call.output_token_ids,
        stop,
        skip_special=fields.skip_special_tokens,
        keep=fields.include_stop_str_in_output,
    )
    return text, stop if isinstance(stop, str) else None
