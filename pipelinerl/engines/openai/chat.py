"""Messages to a prompt, by the model's own template, and tool calls from its answer.

Tool calls are read only where the template itself defines them: as `<tool_call>{JSON}</tool_call>` (Hermes,
Qwen), or as tags with `<function=name>` (Qwen3-Coder); any other notation stays in the text.
"""

import inspect
import json
import re
import uuid
from collections.abc import Callable
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from pipelinerl.base.foreign_calls import ARGUMENTS
from pipelinerl.base.tagged_calls import BEGIN, NotTagged, Schemas, read_tagged, schemas_of
from pipelinerl.base.thoughts import bounds, is_undecided
from pipelinerl.base.tokenizing import Message, render_chat
from pipelinerl.engines.openai.fields import ChatFields
from pipelinerl.engines.openai.protocol import BadRequest

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ROLES = ("system", "developer", "user", "assistant", "tool")
# As arguments of the template these would decide what the method returns, such as ids for text.
_OWN_ARGUMENTS = frozenset(inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters)


def prompt_text(tokenizer: PreTrainedTokenizerFast, fields: ChatFields) -> str:
    """What the template makes of messages and tools. Raises BadRequest."""
    extra = fields.chat_template_kwargs or {}
    if owned := sorted(set(extra) & _OWN_ARGUMENTS):
        raise BadRequest(f"chat_template_kwargs may not set {owned[0]!r}; it is decided by the request")
    messages = plain_messages(fields.messages)
    try:
        return render_chat(
            tokenizer,
            messages,
            tools=fields.tools,
            generation_prompt=fields.add_generation_prompt,
            template_kwargs=extra,
        )
    except (TemplateError, ValueError, TypeError, KeyError, AttributeError) as error:
        # A template runs the caller's data: what it trips over is the request's fault.
        raise BadRequest(f"the chat template refuses the messages: {error}") from None


def plain_messages(messages: list[Message]) -> list[Message]:
    """Messages as templates expect them: text as strings, arguments of calls as values. Raises BadRequest."""
    return [_message(one, position) for position, one in enumerate(messages)]


Function = tuple[str, Any]
"""A called function's name, and its arguments as values of JSON."""
Reader = Callable[[str], tuple[str | None, list[dict[str, Any]]]]
"""Text before the first call, and the calls as OpenAI writes them; all as text if one is malformed."""
# A tag of thoughts that a quotation mark may yet turn into text (`base.thoughts`).
_MAYBE_QUOTED = re.compile(r"[\"'`](?:\\[nrt])*</?think>(?:\\[nrt])*\\?[\"'`]?\Z")
_THOUGHT, _THOUGHT_CHARS = "think>", 20
"""The end of a tag of thoughts, and how many characters decide what it is, but for a block that it is in."""
_BLOCK_MARK = re.compile(r"```|~~~")


class TextBeforeCalls:
    """The text of an answer with tools while it comes: what a `Reader` may yet take away is held back."""

    def __init__(self, opened: bool = False) -> None:
        """`opened`: the prompt ends with `<think>`."""
        self.text = ""
        """All that came."""
        self.given = 0
        """Characters of it that were handed out."""
        self._opened = opened
        self._start, self._end = bounds("", opened)
        self._undecided = False

    def add(self, piece: str) -> str:
        """The text that is certain now and was not before."""
        near = max(0, len(self.text) - _THOUGHT_CHARS)
        self.text += piece
        text = self.text
        # Only where it may change something: long thoughts would be read again for each token.
        if text.find(_THOUGHT, near) >= 0 or (self._undecided and _BLOCK_MARK.search(text, near)):
            self._start, self._end = bounds(text, self._opened)
            self._undecided = is_undecided(text)
            if _MAYBE_QUOTED.search(text, near):
                return ""
        if self._undecided:
            return ""
        # Blanks around the text before a call are taken away, and a call may follow.
        end = 0 if text[:1].isspace() else len(text[: self._before_call()].rstrip())
        certain = text[self.given : end]
        self.given = max(self.given, end)
        return certain

    def _before_call(self) -> int:
        """Where the first call may begin, or its beginning may have begun."""
        ends = [at for mark in (OPEN, BEGIN) if (at := self.text.find(mark, self._start, self._end)) >= 0]
        if ends or self._end is not None:  # in open thoughts no call begins
            return min(ends, default=len(self.text))
        at = self.text.rfind(OPEN[0], -len(OPEN))
        begun = at >= 0 and any(mark.startswith(self.text[at:]) for mark in (OPEN, BEGIN))
        return at if begun else len(self.text)


def call_reader(
    tokenizer: PreTrainedTokenizerFast, fields: ChatFields, opened: bool = False
) -> Reader | None:
    """How calls are read from an answer; None where none may be made, or their notation is not known here.

    `opened`: the prompt ends with `<think>`.
    """
    template = str(tokenizer.chat_template)
    if not fields.tools or fields.tool_choice == "none" or OPEN not in template:
        return None
    schemas = schemas_of(fields.tools) if BEGIN in template else None
    return lambda text: read_tool_calls(text, schemas, opened)


def read_tool_calls(
    text: str, tagged: Schemas | None = None, opened: bool = False
) -> tuple[str | None, list[dict[str, Any]]]:
    """Text before the first call, and the calls; everything as text if one of them is malformed.

    With `tagged`, calls are written in tags and their values typed by these schemas, else they are JSON. A
    call that is quoted in the model's thoughts, which the prompt may have `opened`, is part of the text.
    """
    start, end = bounds(text, opened)
    visible = text[start:end]
    answer, found, rest = visible.partition(OPEN)
    if not found and tagged is not None:
        # Models forget the outer tag, and their parsers begin at the function.
        answer, found, _ = visible.partition(BEGIN)
        rest = visible[len(answer) :]
    if not found:
        return text, []
    calls: list[dict[str, Any]] = []
    for part in rest.split(OPEN):
        inside = part.partition(CLOSE)[0]
        try:
            functions = _json_call(inside) if tagged is None else _tagged_calls(inside, tagged)
            calls += map(_tool_call, functions)
        except RecursionError:  # arguments with a thousand brackets inside each other
            return text, []
        if not functions:
            return text, []
    return (text[:start] + answer).strip() or None, calls


def _json_call(text: str) -> list[Function]:
    """The one call in a text, or none where it is malformed."""
    try:
        value = json.loads(text)
    except ValueError:
        return []
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str):
        return []
    if not name.strip() or not _can_be_sent(name):
        return []
    key = next((key for key in ARGUMENTS if key in value), None)
    if key is None and not value.keys() <= {"name", "id", "type"}:
        return []  # what it calls with stands under a name that is not known
    arguments = value[key] if key is not None and value[key] is not None else {}
    if isinstance(arguments, str):  # written as OpenAI has it
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return []
    return [(name, arguments)] if isinstance(arguments, dict) and _is_finite(arguments) else []


def _can_be_sent(text: str) -> bool:
    """Whether a text is Unicode: JSON may escape half an emoji, which no answer can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_finite(arguments: dict[str, Any]) -> bool:
    """Whether arguments hold no NaN or infinity, which are no JSON."""
    try:
        json.dumps(arguments, allow_nan=False)
    except ValueError:
        return False
    return True


def _tagged_calls(text: str, schemas: Schemas) -> list[Function]:
    try:
        return list(read_tagged(text, schemas))
    except NotTagged:
        return []


def _tool_call(called: Function) -> dict[str, Any]:
    written = json.dumps(called[1], ensure_ascii=False)
    if not _can_be_sent(written):
        written = json.dumps(called[1])
    function = {"name": called[0], "arguments": written}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}


def _message(message: Message, position: int) -> Message:
    """One message as templates expect it: text as a string, arguments of calls as values."""
    where = f"messages[{position}]"
    if message.get("role") not in ROLES:
        raise BadRequest(f"{where}.role {message.get('role')!r} is unknown; use one of {', '.join(ROLES)}")
    plain = {**message, "content": _content(message.get("content"), where)}
    if message.get("tool_calls"):
        plain["tool_calls"] = [_earlier_call(one, where) for one in _listed(message["tool_calls"], where)]
    return plain


def _content(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in _listed(content, where):
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadRequest(f"{where}.content has a part of type {part.get('type')!r}; only text is read")
        texts.append(part["text"])
    return "\n".join(texts)


def _listed(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise BadRequest(f"{where} holds a {type(value).__name__} where a list of objects is expected")
    return value


def _earlier_call(call: dict[str, Any], where: str) -> dict[str, Any]:
    """OpenAI sends arguments as JSON text, templates write them out as values."""
    function = call.get("function")
    if not isinstance(function, dict):
        raise BadRequest(f"{where}.tool_calls has an entry without function")
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            raise BadRequest(f"{where}.tool_calls has arguments that are no JSON") from None
    return {**call, "function": {**function, "arguments": arguments}}
