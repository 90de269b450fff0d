"""One chat of a recorded program, whichever route it asked: the call to the engine and the reply made of it.

`routes`, `messages` and `responses` translate their bodies into `ChatFields`, ask here, and write the reply
as their clients read it. So the ids, log-probabilities and versions of every route are the engine's.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pipelinerl.async_llm import ended_text
from pipelinerl.base.tokenizing import begins_in_thoughts, encode_within, longest_token
from pipelinerl.engines.llm_call import LLMCall, LLMOutput, Prompt, ToolCall
from pipelinerl.engines.llm_engine import EngineLLM
from pipelinerl.engines.openai.answers import Piece
from pipelinerl.engines.openai.chat import call_reader, plain_messages, prompt_text
from pipelinerl.engines.openai.fields import ChatFields
from pipelinerl.engines.openai.protocol import require
from pipelinerl.extras.recorder import sampling
from pipelinerl.extras.recorder.asked import Asked, bound, ruled, shown
from pipelinerl.extras.recorder.session import DialogueKey, Session, dialogue_key

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


class Chat:
    """A chat of a program, whichever route it asked: `reply`, or `pieces` and then `replied`."""

    replied: Reply

    def __init__(self, asked: Asked, fields: ChatFields, key: DialogueKey) -> None:
        self._asked, self._fields, self._key = asked, fields, key
        tokenizer, (prompt,) = asked.llm.load_tokenizer(), asked.prompts
        self._reader = call_reader(tokenizer, fields, begins_in_thoughts(tokenizer, prompt.token_ids))

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
