"""One JSON value out of a model's answer, in linear time: the whole text, a fenced block or an embedded span.

Ambiguity is an error: guessing which of two fragments was meant would reward malformed answers.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from pipelinerl.base.thoughts import answer_part, thoughts_are_open

MAX_CHARS = 200_000
MAX_DEPTH = 64

_FENCE = "```"
_FENCE_INFO = re.compile(r"[A-Za-z0-9_+-]*\s*")
_BRACKETS = re.compile(r'[\[\]{}"]')
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_CLOSER = {"[": "]", "{": "}"}


class ExtractError(ValueError):
    """The text holds no usable value; `kind` says why in a word, such as `truncated` or `ambiguous`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Extracted:
    """The value and the path on which it was found."""

    value: Any
    path: Literal["clean", "fenced", "embedded"]


def extract(text: str, expected: Literal["array", "object"]) -> Extracted:
    """The one JSON value of the expected type in `text`. Raises `ExtractError`.

    Only what stands behind the thoughts is read: all of it is tried, then the last fenced block if there
    is one, then the only balanced top-level span that opens with the expected bracket.
    """
    if len(text) > MAX_CHARS:
        raise ExtractError("too_long", f"{len(text)} characters; at most {MAX_CHARS} are read")
    if thoughts_are_open(text):
        raise ExtractError("unclosed_think", "a <think> block is not closed")
    visible = answer_part(text).strip()
    try:
        return Extracted(_checked(_parse(visible), expected), "clean")
    except _NotJson:
        pass
    if _FENCE in visible:
        try:
            return Extracted(_checked(_parse(_last_fenced(visible)), expected), "fenced")
        except _NotJson as error:
            raise ExtractError("bad_fence", "the last fenced block is not valid JSON") from error
    return Extracted(_only_span(visible, expected), "embedded")


class _NotJson(Exception):
    """This text is not JSON; another path may still find some."""


def _parse(text: str) -> Any:
    """The parsed text; `_NotJson` if it is none, `ExtractError` for a value that JSON does not allow."""
    try:
        return json.loads(text, parse_constant=_refuse_number, parse_float=_finite)
    except ExtractError:
        raise
    except (ValueError, RecursionError) as error:
        raise _NotJson from error


def _refuse_number(name: str) -> NoReturn:
    raise ExtractError("non_finite", f"{name} is not allowed; numbers must be finite")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        _refuse_number(digits[:40])
    return value


def _checked(value: Any, expected: str) -> Any:
    if not isinstance(value, list if expected == "array" else dict):
        raise ExtractError("wrong_type", f"got {type(value).__name__}; send an {expected}")
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ExtractError("too_deep", f"nested more than {MAX_DEPTH} levels deep")
        children = (child for node in level for child in (node.values() if isinstance(node, dict) else node))
        level = [child for child in children if isinstance(child, dict | list)]
    _require_text(value)
    return value


def _require_text(value: Any) -> None:
    """Half a surrogate pair cannot be hashed, sent or logged."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ExtractError("bad_unicode", "a string holds half a surrogate pair") from error


def _last_fenced(text: str) -> str:
    """The content of the last fenced block; `_NotJson` if a fence is left open."""
    parts = text.split(_FENCE)
    if len(parts) % 2 == 0:
        raise _NotJson
    block = parts[-2]
    info = _FENCE_INFO.match(block)
    # Blanks and line ends of Unicode around a value are none to JSON.
    return block[info.end() if info else 0 :].strip()


def _only_span(text: str, expected: str) -> Any:
    """The only valid top-level span that opens with the expected bracket."""
    opener = "[" if expected == "array" else "{"
    found: list[Any] = []
    position = 0
    while (match := _BRACKETS.search(text, position)) is not None:
        position = match.end()
        if match[0] not in _CLOSER:
            continue  # prose between spans may hold quotes and stray closers
        end = _span_end(text, match.start())
        position = end
        if match[0] != opener:
            continue
        try:
            found.append(_checked(_parse(text[match.start() : end]), expected))
        except _NotJson:
            continue
        if len(found) > 1:
            raise ExtractError("ambiguous", f"more than one {expected}; send exactly one")
    if not found:
        raise ExtractError("not_found", f"no {expected} in the text")
    return found[0]


def _span_end(text: str, start: int) -> int:
    """Position after the bracket that closes the one at `start`, brackets inside strings ignored."""
    closers: list[str] = []
    position = start
    while (match := _BRACKETS.search(text, position)) is not None:
        position = match.end()
        if match[0] == '"':
            string = _STRING.match(text, match.start())
            if string is None:
                break
            position = string.end()
        elif match[0] in _CLOSER:
            closers.append(_CLOSER[match[0]])
        elif match[0] == closers[-1]:
            closers.pop()
            if not closers:
                return position
        else:
            break  # a closer of the wrong kind: nothing after it can balance this span
    raise ExtractError("truncated", "a bracket is not closed; send complete JSON")
