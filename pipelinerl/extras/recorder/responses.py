"""OpenAI's `/v1/responses`: its items as a chat, and the reply as its client reads it. Called by `site`.

A session keeps its responses, so that a program may go on with `previous_response_id`. What a sampled chat
has not (pictures, files, tools that a server runs, formats, conversations) is refused by name.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from pipelinerl.engines.openai.fields import ChatFields
from pipelinerl.engines.openai.handlers import read
from pipelinerl.engines.openai.protocol import require
from pipelinerl.extras.recorder.replies import Answered, Chat, Reply, chat_of
from pipelinerl.extras.recorder.session import Session

Item = dict[str, Any]
TEXTS = ("input_text", "output_text", "text")


class ResponsesFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of `POST /v1/responses`; null stands for the default."""

    input: str | list[Item]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    # Taken without effect: about accounts, caches, and what is returned of what a session has not.
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    reasoning: dict[str, Any] | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None

    def check(self) -> None:
        """Raises BadRequest for what a session never does; what chats do not do either is refused there."""
        kind = ((self.text or {}).get("format") or {}).get("type", "text")
        effort = (self.reasoning or {}).get("effort")
        require(
            (bool(self.input), "input is empty; at least one message is needed"),
            (kind == "text", f"text.format {kind!r} is not supported; the policy is sampled freely"),
            (effort is None, f"reasoning.effort {effort!r} is not supported; leave it out"),
            (not self.top_logprobs, f"top_logprobs {self.top_logprobs} is not supported; send 0 or null"),
            (self.truncation in (None, "disabled"), "truncation 'auto' is not supported; send disabled"),
            (not self.background, "background: true is not supported; leave it out"),
        )


async def responses(session: Session, body: bytes) -> Answered:
    """A chat in the words of OpenAI's responses, recorded as any other."""
    fields = read(body, ResponsesFields)
    turns = [*_earlier(session, fields), *_turns(fields.input)]
    chat = read(msgspec.json.encode(_chat(fields, turns)), ChatFields)
    asked = {"temperature": fields.temperature, "top_p": fields.top_p}
    said = await chat_of(session, chat, asked)
    begun = _begun(fields, session.llm.model_name)

    def ended(reply: Reply) -> dict[str, Any]:
        session.responses[begun["id"]] = [*turns, _assistant(reply)]
        return _response(reply, begun)

    if fields.stream:
        return Answered({}, _numbered(_events(said, begun, ended)), named=True)
    return Answered(ended(await said.reply()))


def _earlier(session: Session, fields: ResponsesFields) -> list[dict[str, Any]]:
    """The chat up to the response that this one follows; its instructions are not carried over."""
    name = fields.previous_response_id
    if name is None:
        return []
    require((name in session.responses, f"previous_response_id {name[:100]!r} is not of this session"))
    return session.responses[name]


def _chat(fields: ResponsesFields, turns: list[dict[str, Any]]) -> dict[str, Any]:
    """The same request as a body of OpenAI's chat route."""
    system = [{"role": "system", "content": fields.instructions}] if fields.instructions else []
    chat: dict[str, Any] = {"messages": system + turns, "max_tokens": fields.max_output_tokens}
    if fields.tools:
        chat["tools"] = [_tool(one, f"tools[{at}]") for at, one in enumerate(fields.tools)]
    # Without tools as well: a chat refuses the values that it does not keep.
    return chat | {"tool_choice": fields.tool_choice, "parallel_tool_calls": fields.parallel_tool_calls}


def _turns(given: str | list[Item]) -> list[dict[str, Any]]:
    """Items as messages. A reply's text and the calls behind it are one message of a chat."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    turns: list[dict[str, Any]] = []
    for position, item in enumerate(given):
        where, kind = f"input[{position}]", item.get("type") or "message"
        if kind == "message":
            turns.append({"role": item.get("role"), "content": _text(item.get("content"), where)})
        elif kind == "function_call":
            if not (turns and turns[-1]["role"] == "assistant"):
                turns.append({"role": "assistant", "content": ""})
            turns[-1].setdefault("tool_calls", []).append(_call(item, where))
        elif kind == "function_call_output":
            result = _text(item.get("output"), where)
            turns.append({"role": "tool", "tool_call_id": _named(item, "call_id", where), "content": result})
        else:
            require((False, f"{where}.type {kind!r} is not supported; only messages and calls are read"))
    return turns


def _call(item: Item, where: str) -> dict[str, Any]:
    function = {"name": _named(item, "name", where), "arguments": item.get("arguments") or "{}"}
    return {"id": _named(item, "call_id", where), "type": "function", "function": function}


def _named(item: Mapping[str, Any], key: str, where: str) -> str:
    value = item.get(key)
    require((isinstance(value, str), f"{where} has no {key}"))
    return str(value)


def _text(content: Any, where: str) -> str:
    """A text, or parts of text as lines, which is how the chat route joins its parts."""
    if isinstance(content, str):
        return content
    listed = isinstance(content, list) and all(isinstance(one, dict) for one in content)
    require((listed, f"{where} holds a {type(content).__name__}, not a text or a list of parts"))
    for part in content:
        known = part.get("type") in TEXTS and isinstance(part.get("text"), str)
        require((known, f"{where} has a part of type {part.get('type')!r}; only text is read"))
    return "\n".join(part["text"] for part in content)


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    require(
        (kind == "function", f"{where}.type {kind!r} is not supported; only functions of the program are")
    )
    function = {
        "name": _named(tool, "name", where),
        "parameters": tool.get("parameters") or {"type": "object"},
    }
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _assistant(reply: Reply) -> dict[str, Any]:
    calls = [{"type": "function", **one.model_dump()} for one in reply.tool_calls]
    return {"role": "assistant", "content": reply.content, **({"tool_calls": calls} if calls else {})}


def _begun(fields: ResponsesFields, model: str) -> dict[str, Any]:
    """A response of which nothing was said yet."""
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "incomplete_details": None,
        "error": None,
        "model": fields.model or model,
        "instructions": fields.instructions,
        "previous_response_id": fields.previous_response_id,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": fields.metadata or {},
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": fields.tool_choice or "auto",
        "tools": fields.tools or [],
        "temperature": fields.temperature,
        "top_p": fields.top_p,
        "usage": None,
    }


def _response(reply: Reply, begun: dict[str, Any]) -> dict[str, Any]:
    status = "incomplete" if reply.cut else "completed"
    output = [_message(begun, status, reply.content)] if reply.content or not reply.tool_calls else []
    output += [
        {"type": "function_call", "id": f"fc_{uuid.uuid4().hex}", "call_id": one.id, "status": status}
        | {"name": one.function.name, "arguments": one.function.arguments}
        for one in reply.tool_calls
    ]
    prompt, sampled = reply.call.prompt_length_tokens, reply.call.output_length_tokens
    return begun | {
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if reply.cut else None,
        "output": output,
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + sampled,
        },
    }


def _message(begun: dict[str, Any], status: str, text: str | None) -> Item:
    """The message of a response, under one id from its beginning on; None for no part of text yet."""
    name = begun["id"].removeprefix("resp_")
    message: Item = {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": status}
    return message | {"content": [] if text is None else [_part(text)]}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


async def _numbered(events: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
    number = 0
    async with aclosing(events):
        async for event in events:
            yield event | {"sequence_number": number}
            number += 1


async def _events(
    said: Chat, begun: dict[str, Any], ended: Callable[[Reply], dict[str, Any]]
) -> AsyncGenerator[dict[str, Any]]:
    """The stream of a response: each item is added, grows and is done; the whole comes last."""
    at = {"output_index": 0, "item_id": _message(begun, "", None)["id"], "content_index": 0}
    opened = started = False
    async with aclosing(said.pieces()) as pieces:
        async for piece in pieces:
            if not started:
                started = True
                yield {"type": "response.created", "response": begun}
                yield {"type": "response.in_progress", "response": begun}
            if piece.text and not opened:
                opened = True
                for event in _opened(begun, at):
                    yield event
            if piece.text:
                yield {"type": "response.output_text.delta", **at, "delta": piece.text, "logprobs": []}
    whole = ended(said.replied)
    for index, item in enumerate(whole["output"]):
        for event in _called(item, index) if item["type"] != "message" else _said(item, begun, at, opened):
            yield event
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{whole['status']}", "response": whole}


def _opened(begun: dict[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield _added(0, _message(begun, "in_progress", None))
    yield {"type": "response.content_part.added", **at, "part": _part("")}


def _said(item: Item, begun: dict[str, Any], at: dict[str, Any], opened: bool) -> Iterator[dict[str, Any]]:
    (part,) = item["content"]
    if not opened:  # a reply without text
        yield from _opened(begun, at)
    yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": part}


def _called(item: Item, index: int) -> Iterator[dict[str, Any]]:
    yield _added(index, item | {"arguments": "", "status": "in_progress"})
    at = {"output_index": index, "item_id": item["id"]}
    arguments, kind = item["arguments"], "response.function_call_arguments"
    yield {"type": f"{kind}.delta", **at, "delta": arguments}
    yield {"type": f"{kind}.done", **at, "name": item["name"], "arguments": arguments}


def _added(index: int, item: Item) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}
