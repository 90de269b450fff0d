"""One chat of a recorded program, whichever route it asked: the call to the engine and the reply made of it.

`routes`, `messages` and `responses` translate their bodies into `ChatFields`, ask here, and write the reply
as their clients read it. So the ids, log-probabilities and versions of every route are the engine's.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pipelinerl.async_llm import ended_text
from pipelinerl.base.tokenizing import encode_within, longest_token
from pipelinerl.base.waits import wait_for
from pipelinerl.engines.answers import UNVERSIONED, LiveAnswer, Tokens
from pipelinerl.engines.llm_call import LLMCall, LLMOutput, Prompt, TokenLogprobs, ToolCall
from pipelinerl.engines.llm_engine import EngineLLM, several
from pipelinerl.engines.openai.answers import Piece
from pipelinerl.engines.openai.chat import TextBeforeCalls, call_reader, plain_messages, prompt_text
from pipelinerl.engines.openai.fields import ChatFields, SharedFields
from pipelinerl.engines.openai.protocol import SamplingFields, require
from pipelinerl.engines.openai.text import OutputText
from pipelinerl.extras.recorder import sampling
from pipelinerl.extras.recorder.session import END_DEADLINE_S, DialogueKey, Session, dialogue_key

log = logging.getLogger(__name__)
_READ_BY_ENGINES: set[str] = set()
"""Models of which was said that their tool calls are."""


@dataclass(frozen=True)
class Answered:
    """The body of an answer, or the events of one that was asked for as a stream."""

    body: dict[str, Any]
    events: AsyncGenerator[dict[str, Any]] | None = None
    named: bool = False
    """Whether each event is sent under its `type`, as the two newer routes do."""


@dataclass(frozen=True)
class Reply:
    """What the model said to a chat."""

    call: LLMCall
    text: str
    """All of it, calls of tools as the model wrote them, without the stop string that ended it."""
    content: str
    """`text` without what was read as calls of tools."""
    tool_calls: Sequence[ToolCall]
    stop: str | None
    """The stop string that ended it, the program's or the run's."""

    @property
    def cut(self) -> bool:
        """Whether a length ended it."""
        return bool(self.call.llm_info["finish_reason"] == "length")


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
        told = [_Told(self.llm, self.fields, tools) for _ in tasks]
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

    def __init__(self, llm: EngineLLM, fields: SharedFields | SamplingFields, tools: bool) -> None:
        ends = SamplingFields(
            stop=list(several("stop", llm.parameters.get("stop"), str)),
            include_stop_str_in_output=fields.include_stop_str_in_output,
            skip_special_tokens=fields.skip_special_tokens,
            # What may become a stop string is held back; whether it ends the answer, the engine decides.
            min_tokens=sys.maxsize,
        )
        self._output = OutputText(llm.load_tokenizer().backend_tokenizer, ends)
        self._before_calls = TextBeforeCalls() if tools else None
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
        for _, _, self._versioned in tokens.versions:
            pass
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


class Chat:
    """A chat of a program, whichever route it asked: `reply`, or `pieces` and then `replied`."""

    replied: Reply

    def __init__(self, asked: Asked, fields: ChatFields, key: DialogueKey) -> None:
        self._asked, self._fields, self._key = asked, fields, key
        self._reader = call_reader(asked.llm.load_tokenizer(), fields)

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt as the engine computes it; of a chat that the engine renders, once it has answered."""
        (prompt,) = self._asked.prompts
        return prompt.token_ids or self.replied.call.prompt_token_ids.tolist()

    async def reply(self) -> Reply:
        """The whole reply. Raises what `Session.ask` raises."""
        (call,) = await self._asked.calls()
        self._read(call)
        return self.replied

    def pieces(self) -> AsyncGenerator[Piece]:
        """The reply as it is sampled, its text without calls of tools, as `Asked.pieces`."""
        name = self._asked.llm.model_name
        if not self._asked.prompts[0].token_ids and name not in _READ_BY_ENGINES:
            _READ_BY_ENGINES.add(name)
            log.warning(
                "tool calls of %s are read by its engine; streams of chats with tools are sent when they are "
                "whole",
                name,
            )
        return self._asked.pieces(self._read, self._reader is not None)

    def _read(self, call: LLMCall) -> str:
        """Make the reply of an answer; its content."""
        llm = self._asked.llm
        text, stop = shown(llm, call, self._fields)
        if self._reader is not None:
            content, tool_calls = self._reader(text)
            read = {"role": "assistant", "content": content, "tool_calls": tool_calls}
            call.output = LLMOutput.model_validate(read)
        if calls_tools(self._fields):
            made = call.output.tool_calls or []
            self.replied = Reply(call, text, call.output.content or "", made, stop)
            return self.replied.content
        if text == ended_text(llm.load_tokenizer(), call.output_token_ids, None):
            # Nothing was cut off, so the program's next prompt may go on from these ids.
            reply = {"role": "assistant", "content": text}
            self._asked.session.remember(self._key + dialogue_key({}, [reply])[1:], call)
        self.replied = Reply(call, text, text, [], stop)
        return text


async def chat_of(session: Session, fields: ChatFields, body: Mapping[str, Any]) -> Chat:
    """The chat that a program asks for; `body` has what it said of sampling.

    Raises BadRequest for what is not served, and ValueError for a prompt that cannot fit.
    """
    asked, others = ruled(session, body)
    llm = bound(session, asked, fields.chat_template_kwargs)
    prompt, key = await asyncio.to_thread(_prompted, session, llm, fields)
    most = sampling.bounded(fields.most_tokens, session.llm.parameters)
    return Chat(Asked(session, llm, [prompt], most, others, fields), fields, key)


def calls_tools(fields: ChatFields) -> bool:
    """Whether the model may call a tool."""
    return bool(fields.tools) and fields.tool_choice != "none"


def ruled(session: Session, asked: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The request's fields, and those of them that the run overrides. Raises BadRequest."""
    require((asked.get("n") in (None, 1), f"n {asked.get('n')} is not supported; ask as often as needed"))
    others = sampling.overridden(asked, session.llm.parameters)
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


async def encoded(llm: EngineLLM, text: str, add_special_tokens: bool) -> list[int]:
    """Ids of a prompt, made beside the event loop, on which all rollouts of the process are.

    Raises ValueError for a text that cannot fit into the context.
    """
    return await asyncio.to_thread(_encoded, llm, text, add_special_tokens)


def _encoded(llm: EngineLLM, text: str, add_special_tokens: bool) -> list[int]:
    tokenizer = llm.load_tokenizer()
    return encode_within(tokenizer, text, llm.context_size, longest_token(tokenizer), add_special_tokens)


def _prompted(session: Session, llm: EngineLLM, fields: ChatFields) -> tuple[Prompt, DialogueKey]:
    """The prompt of a chat, and the dialogue that it is; in a thread, since a chat may have megabytes."""
    messages = plain_messages(fields.messages)
    key = dialogue_key({"tools": fields.tools, **llm.chat_template_kwargs}, messages)
    if calls_tools(fields) and call_reader(llm.load_tokenizer(), fields) is None:
        # Only the engine knows how its model writes calls. It renders the template itself.
        require((fields.add_generation_prompt, "add_generation_prompt: false with tools is not supported"))
        return Prompt(messages=fields.messages, tools=fields.tools), key
    # Ids are appended as the template begins an answer, so only where it was asked to.
    usual = fields.add_generation_prompt and not (fields.tools or fields.add_special_tokens)
    if usual and (prompt := session.continued(llm, key, messages)) is not None:
        return prompt, key
    whole = msgspec.structs.replace(fields, chat_template_kwargs=llm.chat_template_kwargs)
    text = prompt_text(llm.load_tokenizer(), whole)
    ids = _encoded(llm, text, fields.add_special_tokens)
    return Prompt(messages=messages, tools=fields.tools if calls_tools(fields) else None, token_ids=ids), key
