"""Anthropic's `/v1/messages`: its messages as a chat, and the reply as its client reads it. Called by `site`.

What the API has and a sampled chat has not (pictures, documents, thinking budgets, server tools, a reply that
is begun by the program) is refused by name.
"""

import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from pipelinerl.engines.openai.fields import ChatFields
from pipelinerl.engines.openai.handlers import read
from pipelinerl.engines.openai.protocol import require
from pipelinerl.extras.recorder.replies import Answered, Chat, Reply, chat_of
from pipelinerl.extras.recorder.session import Session

Block = dict[str, Any]


class MessagesFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of `POST /v1/messages`; null stands for the default."""

    messages: list[dict[str, Any]]
    max_tokens: int
    model: str | None = None
    system: str | list[Block] | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    cache_control: dict[str, Any] | None = None

    def check(self) -> None:
        """Raises BadRequest for what a session never does."""
        choice, thinking = self.tool_choice or {}, self.thinking or {}
        kind, thinks = choice.get("type", "auto"), thinking.get("type", "disabled")
        last = self.messages[-1].get("role") if self.messages else None
        require(
            (bool(self.messages), "messages is empty; at least one is needed"),
            (kind in ("auto", "none"), f"tool_choice {kind!r} is not supported; send auto or none"),
            (
                not choice.get("disable_parallel_tool_use"),
                "disable_parallel_tool_use: true is not supported; leave it out",
            ),
            (
                thinks == "disabled",
                f"thinking {thinks!r} is not supported; the run's chat_template_kwargs decide",
            ),
            (last != "assistant", "a reply that the last message begins is not supported; end with the user"),
        )


async def messages(session: Session, body: bytes) -> Answered:
    """A chat in Anthropic's words, recorded as any other."""
    fields = read(body, MessagesFields)
    chat = read(msgspec.json.encode(_chat(fields)), ChatFields)
    asked = {name: getattr(fields, name) for name in ("temperature", "top_p", "top_k")}
    said = await chat_of(session, chat, {**asked, "stop": fields.stop_sequences})
    model = fields.model or session.llm.model_name
    if fields.stream:
        return Answered({}, _events(said, model), named=True)
    return Answered(_message(await said.reply(), model))


def _chat(fields: MessagesFields) -> dict[str, Any]:
    """The same request as a body of OpenAI's chat route."""
    system = [] if not fields.system else [{"role": "system", "content": _text(fields.system, "system")}]
    chat: dict[str, Any] = {"messages": system, "max_tokens": fields.max_tokens}
    for position, message in enumerate(fields.messages):
        chat["messages"] += _turn(message, f"messages[{position}]")
    if fields.tools:
        chat["tools"] = [_tool(one, f"tools[{at}]") for at, one in enumerate(fields.tools)]
        chat["tool_choice"] = (fields.tool_choice or {}).get("type", "auto")
    return chat


def _turn(message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """One message as those of a chat: results of tools are messages of their own there."""
    role, content = message.get("role"), message.get("content")
    require((role in ("user", "assistant"), f"{where}.role {role!r} is unknown; use user or assistant"))
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    turns: list[dict[str, Any]] = []
    texts: list[str] = []
    calls = []
    for block in _blocks(content, where):
        if block.get("type") == "tool_result" and role == "user":
            result = _text(block.get("content") or "", f"{where}.content of a tool_result")
            turns += [*_said(role, texts), _result(block, result, where)]
            texts = []
        elif block.get("type") == "tool_use" and role == "assistant":
            calls.append(_call(block, where))
        else:
            texts.append(_text([block], where))
    if calls:
        return [{"role": role, "content": "\n".join(texts), "tool_calls": calls}]
    # A reply without any text is one too; a user who sends nothing but results has said nothing more.
    return turns + (_said(role, texts) if texts or turns else [{"role": role, "content": ""}])


def _said(role: str | None, texts: list[str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": "\n".join(texts)}] if texts else []


def _result(block: Block, text: str, where: str) -> dict[str, Any]:
    name = block.get("tool_use_id")
    require((isinstance(name, str), f"{where}.content has a tool_result without tool_use_id"))
    return {"role": "tool", "tool_call_id": name, "content": text}


def _call(block: Block, where: str) -> dict[str, Any]:
    named = isinstance(block.get("id"), str) and isinstance(block.get("name"), str)
    require((named, f"{where}.content has a tool_use without id or name"))
    arguments = msgspec.json.encode(block.get("input") or {}).decode()
    function = {"name": block["name"], "arguments": arguments}
    return {"id": block["id"], "type": "function", "function": function}


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type") or "custom"
    require(
        (kind == "custom", f"{where}.type {kind!r} is not supported; only tools of the program are"),
        (isinstance(tool.get("name"), str), f"{where} has no name"),
    )
    function = {"name": tool["name"], "parameters": tool.get("input_schema") or {"type": "object"}}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _blocks(content: Any, where: str) -> list[Block]:
    listed = isinstance(content, list) and all(isinstance(one, dict) for one in content)
    require((listed, f"{where}.content is a {type(content).__name__}, not a text or a list of blocks"))
    found: list[Block] = content
    return found


def _text(content: Any, where: str) -> str:
    """A text, or blocks of text as lines, which is how the chat route joins its parts."""
    if isinstance(content, str):
        return content
    blocks = _blocks(content, where)
    for block in blocks:
        known = block.get("type") == "text" and isinstance(block.get("text"), str)
        require((known, f"{where} has a block of type {block.get('type')!r}; only text is read"))
    return "\n".join(block["text"] for block in blocks)


def _message(reply: Reply, model: str) -> dict[str, Any]:
    uses = _uses(reply)
    text = reply.text if uses is None else reply.content
    content: list[Block] = [{"type": "text", "text": text}] if text else []
    content += uses or []
    ended = "max_tokens" if reply.cut else "tool_use" if uses else None
    call = reply.call
    return {
        **_begun(model, call.prompt_length_tokens),
        "content": content,
        "stop_reason": ended or ("stop_sequence" if reply.stop else "end_turn"),
        "stop_sequence": None if ended else reply.stop,
        "usage": {"input_tokens": call.prompt_length_tokens, "output_tokens": call.output_length_tokens},
    }


def _begun(model: str, prompt_tokens: int) -> dict[str, Any]:
    """A message of which nothing was said yet."""
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
    }


def _uses(reply: Reply) -> list[Block] | None:
    """The reply's calls of tools as blocks; None if the arguments of one are no object, which blocks hold."""
    uses = []
    for one in reply.tool_calls:
        try:
            given = msgspec.json.decode(one.function.arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            return None
        uses.append({"type": "tool_use", "id": one.id, "name": one.function.name, "input": given})
    return uses


async def _events(said: Chat, model: str) -> AsyncGenerator[dict[str, Any]]:
    """The stream of a message: each block begins, grows and ends; why it ended comes last."""
    text = ""
    begun = False
    async with aclosing(said.pieces()) as pieces:
        async for piece in pieces:
            if not begun:
                begun = True
                yield {"type": "message_start", "message": _begun(model, len(said.prompt_ids))}
            # The end of a text whose calls are shown as the model wrote them is longer than the piece.
            for event in _grown(text, piece.text):
                yield event
            text += piece.text
    whole = _message(said.replied, model)
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            for event in _grown(text, block["text"][len(text) :]):
                yield event
        else:
            yield _block(index, block | {"input": {}})
            written = msgspec.json.encode(block["input"]).decode()
            yield _delta(index, {"type": "input_json_delta", "partial_json": written})
        yield {"type": "content_block_stop", "index": index}
    ended = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    counts = {"output_tokens": whole["usage"]["output_tokens"]}
    yield {"type": "message_delta", "delta": ended, "usage": counts}
    yield {"type": "message_stop"}


def _grown(text: str, more: str) -> Iterator[dict[str, Any]]:
    """The text, which is a message's first block, grows; it begins with its first piece."""
    if more and not text:
        yield _block(0, {"type": "text", "text": ""})
    if more:
        yield _delta(0, {"type": "text_delta", "text": more})


def _block(index: int, block: Block) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def _delta(index: int, delta: Block) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}
