"""One chat of a recorded program, whichever route it asked: the call to the engine and the reply made of it.

`routes`, `messages` and `responses` translate their bodies into `ChatFields`, ask here, and write the reply
as their clients read it. So the ids, log-probabilities and versions of every route are the engine's.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pipelinerl.async_llm import ended_text
from pipelinerl.base.tokenizing import decode, encode_within, longest_token
from pipelinerl.engines.llm_call import LLMCall, Prompt, ToolCall
from pipelinerl.engines.llm_engine import EngineLLM
from pipelinerl.engines.openai.chat import plain_messages, prompt_text
from pipelinerl.engines.openai.fields import ChatFields, SharedFields
from pipelinerl.engines.openai.protocol import SamplingFields, require
from pipelinerl.engines.openai.text import OutputText
from pipelinerl.extras.recorder import sampling
from pipelinerl.extras.recorder.session import DialogueKey, Session, dialogue_key


@dataclass(frozen=True)
class Answered:
    """The body of an answer, or the events of one that was asked for as a stream."""

    body: dict[str, Any]
    events: list[dict[str, Any]] | None = None
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


async def chat_reply(session: Session, fields: ChatFields, body: Mapping[str, Any]) -> Reply:
    """Ask the rollout's engine for the reply; `body` has what the program said of sampling.

    Raises BadRequest for what is not served, and what `Session.ask` raises.
    """
    asked, others = ruled(session, body)
    llm = bound(session, asked, fields.chat_template_kwargs)
    prompt, key = await asyncio.to_thread(_prompted, session, llm, fields)
    most = sampling.bounded(fields.most_tokens, session.llm.parameters)
    (call,) = await session.ask(llm, [prompt], most, others)
    text, stop = shown(llm, call, fields)
    if calls_tools(fields):
        return Reply(call, text, call.output.content or "", call.output.tool_calls or [], stop)
    if text == decode(llm.load_tokenizer(), call.output_token_ids, skip_special=True):
        # Nothing was cut off, so the program's next prompt may go on from these ids.
        reply = {"role": "assistant", "content": text}
        session.remember(key + dialogue_key({}, [reply])[1:], call)
    return Reply(call, text, text, [], stop)


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


def by_token(llm: EngineLLM, call: LLMCall, text: str) -> list[str]:
    """A call's text in as many pieces as tokens were sampled, for streams; the last one has what is left.

    A token that ends within a character has an empty piece, and so has one behind the end of `text`.
    """
    output = OutputText(llm.load_tokenizer().backend_tokenizer, SamplingFields())
    ends = []
    for token in call.output_token_ids.tolist():
        output.add(token, ends=False)
        ends.append(len(output.text))
    ends[-1] = max(ends[-1], len(text))
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


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
    if calls_tools(fields):
        # Only the engine knows how its model writes calls. It renders the template itself.
        require((fields.add_generation_prompt, "add_generation_prompt: false with tools is not supported"))
        return Prompt(messages=fields.messages, tools=fields.tools), key
    # Ids are appended as the template begins an answer, so only where it was asked to.
    usual = fields.add_generation_prompt and not (fields.tools or fields.add_special_tokens)
    if usual and (prompt := session.continued(llm, key, messages)) is not None:
        return prompt, key
    whole = msgspec.structs.replace(fields, chat_template_kwargs=llm.chat_template_kwargs)
    text = prompt_text(llm.load_tokenizer(), whole)
    return Prompt(messages=messages, token_ids=_encoded(llm, text, fields.add_special_tokens)), key
