"""The calls in a completion: JSON, tags, marks of other families, or Python's syntax; nothing is ever run."""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelinerl.base.foreign_calls import (
    ARGUMENTS,
    Called,
    begins_named,
    function_tags,
    marked_parts,
    named_calls,
    notation,
)
from pipelinerl.base.tagged_calls import BEGIN, NotTagged, Schemas, read_tagged, schemas_of
from pipelinerl.base.thoughts import answer_part

LONGEST = 20_000
"""Characters of calls that are read; longer ones count as unreadable."""
_TAG = re.compile(
    r"(?<![\"'`])([\"'`])</?tool_calls?>\1(?![\"'`])|<(?P<end>/?)tool_call(?P<list>s?)>", re.IGNORECASE
)
"""One between quotation marks or backticks is quoted, in words or an argument, and begins or ends nothing."""
_BETWEEN = re.compile(r"[\s,;]*")
_LABEL = re.compile(r"\w*[ \t]*(?:\r\n|[\n\r\v\f\x85\u2028\u2029])|(?:json|python|py)\b")
_BEGUN = re.compile(r"[\[{]|[A-Za-z_][\w.-]*\(|```|~~~|<function=", re.ASCII)
_TAGS_BEGIN, _TAGS_END = re.compile(r"^[ \t]*<function=", re.MULTILINE), "</function>"
_NAME = re.compile(r"[A-Za-z_]\w*(?:[.-]\w+)*", re.ASCII)
_LEADS = re.compile(
    r"[\[\s]*(?:\{\s*[\"'](?:name[\"']\s*:\s*[\"'])?(?P<json>[\w.-]+)[\"']|(?P<python>[\w.-]+)\()",
    re.ASCII,
)
"""The name of a function at the beginning of what is a call, whole or not."""
_NAMES = ("name", "tool_name")
"""How models name a call's function; Command the second way."""
_BESIDE = frozenset({*_NAMES, "tool_call_id", "id", "type"})
"""What may stand beside the name of a call without arguments."""


@dataclass(frozen=True)
class Call:
    """One call of a function with named arguments; values are those of JSON."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Unreadable(ValueError):
    """A completion means to call something, and its calls cannot be read."""


def read_calls(
    completion: str,
    tool_calls: Sequence[Mapping[str, Any]] | None = None,
    functions: Sequence[Mapping[str, Any]] = (),
) -> list[Call]:
    """The calls of a completion, in their order; none where it calls nothing.

    `tool_calls` are those that an engine has read already, `{function: {name, arguments}}`; they go first.
    Else those in the last `<tool_calls>...</tool_calls>` that is not empty, or, where `<tool_call>` stands
    last, those of all its blocks, as models write several, also where the end tag of one was forgotten or
    cut off; else what follows Mistral's or Llama's marks; else the whole completion, if it is nothing but
    calls, or its end in tags. What stands in a block or alone may be fenced. `functions` are the schemas that
    give values in tags their types: without them they are texts.
    Raises Unreadable for a block that holds no calls, and for calls as other families write them.
    """
    if tool_calls:
        return [_from_json(call) for call in tool_calls]
    completion = answer_part(completion)
    schemas = schemas_of(functions)
    # Engines' own tool calls have no dots in names.
    schemas |= {name.replace(".", "_"): schema for name, schema in schemas.items()}
    if blocks := _blocks(completion):
        filled = [block for block in blocks if block[1]]
        if filled and filled[-1][0]:
            return _parsed(filled[-1][1], schemas)
        return [call for listed, written in filled if not listed for call in _parsed(written, schemas)]
    if parts := [one for one in marked_parts(completion) if _BEGUN.match(one) or begins_named(one)]:
        return [call for part in parts for call in _behind_mark(part, schemas)]
    if (mark := notation(completion)) is not None:
        raise Unreadable(f"calls behind {mark}, a notation that is not read")
    if completion.rstrip().endswith(_TAGS_END) and (begun := _TAGS_BEGIN.search(completion)) is not None:
        completion = completion[begun.start() :]  # words may stand before these calls
    text = _unfenced(completion)
    # Engines leave out Mistral's marks, which are special tokens; what is left are names that are known.
    if len(text) <= LONGEST and (called := named_calls(text)) and all(name in schemas for name, _ in called):
        return _named(called)
    if not text.startswith(("[", "{", BEGIN)) and not (text.endswith(")") and _NAME.match(text)):
        return []
    try:
        return _parsed(text, schemas)
    except Unreadable:
        leads = _LEADS.match(text)
        if leads is not None and (leads["json"] or leads["python"]) in schemas:
            raise
        return []  # words that look like a call


def speaks_of_a_call(completion: str, functions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a text without calls holds one of these functions among words, or in a form that is not read.

    `f(x=1)`, `f("a")`, `f: {"x": 1`, `"tool": "f"`, `<f>`, `to=f`; `f`, `f(x)` and `f(x=...)` may only be
    spoken of.
    """
    names = "|".join(
        {re.escape(name) for one in functions for name in (one["name"], one["name"].replace(".", "_"))}
    )
    value = r"(?!\s*[\"'<{\[]?(?:\.\.|\u2026|<))"
    called = rf"\b(?:{names})(?:\(\s*(?:\w+\s*={value}|(?!.\.\.)[\"'\d])"
    called += rf"|[^{{}}]{{0,40}}\{{\s*[\"']\w[^\"'\n]*[\"']\s*:{value})"
    called += rf"|:\s*[\"'](?:{names})[\"']\s*[,}}]"
    tagged = rf"<(?:{names})>|\bto=(?:{names})\b|<function(?:=|\sname=\")(?:{names})\b"
    return bool(names) and re.search(f"{called}|{tagged}", answer_part(completion)) is not None


def _named(called: Sequence[Called]) -> list[Call]:
    return [_from_json({"name": name, "arguments": arguments}) for name, arguments in called]


def _behind_mark(text: str, schemas: Schemas) -> list[Call]:
    if len(text) <= LONGEST and (called := named_calls(text)):
        return _named(called)
    return _parsed(text, schemas)


def _blocks(text: str) -> list[tuple[bool, str]]:
    """What stands between each pair of tags, and whether their name is that of a list, `tool_calls`."""
    found: list[tuple[bool, str]] = []
    opened: re.Match[str] | None = None
    for tag in _TAG.finditer(text):
        if tag["end"] is None:  # quoted
            continue
        inside = "" if opened is None else text[opened.end() : tag.start()].strip()
        if tag["end"]:
            found += [] if opened is None else [(bool(opened["list"]), inside)]
            opened = None
        elif not inside or opened is None or not opened["list"]:
            # A list may be written around blocks of single calls; a single one that goes on lacks its end.
            found += [(False, inside)] if _BEGUN.match(inside) else []
            opened = tag
    if opened is not None and _BEGUN.match(left := text[opened.end() :].strip()):
        found.append((bool(opened["list"]), left))
    return found


def _unfenced(text: str) -> str:
    """What stands between two equal fences around all of a text, without its language."""
    text = text.strip()
    fence = text[: len(text) - len(text.lstrip(text[:1]))]
    if len(fence) < 3 or fence[0] not in "`~" or len(text) < 2 * len(fence) or not text.endswith(fence):
        return text
    inside = text[len(fence) : -len(fence)]
    label = _LABEL.match(inside)
    return inside[label.end() if label else 0 :].strip()


def _parsed(text: str, schemas: Schemas) -> list[Call]:
    text = _unfenced(text)
    if len(text) > LONGEST:
        raise Unreadable(f"{len(text)} characters; at most {LONGEST} are read")
    if text.startswith(BEGIN):
        try:
            return [Call(name, arguments) for name, arguments in read_tagged(text, schemas)]
        except NotTagged as error:
            if called := function_tags(text):
                return _named(called)
            raise Unreadable(str(error)) from None
    try:
        found = list(_values(text))
    except (ValueError, RecursionError):
        return _from_python(text)
    return [_from_json(call) for one in found for call in _listed(one)]


def _listed(value: Any) -> list[Any]:
    """The calls of a JSON value: one, a list, or a list under OpenAI's name."""
    if isinstance(value, Mapping) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    return value if isinstance(value, list) else [value]


def _values(text: str) -> Iterator[Any]:
    """JSON values one after another; blanks, commas or semicolons may stand between them. ValueError."""
    at = 0
    while at < len(text):
        value, end = json.JSONDecoder().raw_decode(text, at)
        yield value
        between = _BETWEEN.match(text, end)
        at = end if between is None else between.end()


def _from_json(call: Any) -> Call:
    """`{name, arguments}`, `{function: {name, arguments}}`, or `{name: arguments}`."""
    if not isinstance(call, Mapping):
        raise Unreadable(f"a {type(call).__name__}, expected a call")
    if isinstance(call.get("function"), Mapping):
        call = call["function"]
    if (key := next((key for key in _NAMES if key in call), None)) is not None:
        name, given = call[key], next((key for key in ARGUMENTS if key in call), None)
        if given is None and not call.keys() <= _BESIDE:
            raise Unreadable("arguments under a name that is not known")
        arguments: Any = {} if given is None else call[given]
    elif len(call) == 1:
        ((name, arguments),) = call.items()
    else:
        raise Unreadable("no name")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise Unreadable("the arguments are no JSON") from None
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise Unreadable("a name is a text, and arguments are an object")
    return Call(name, dict(arguments))


def _from_python(text: str) -> list[Call]:
    """`f(a=1)`, several of them separated by commas or lines, or a list of them."""
    try:
        body = ast.parse(text).body
        if not all(isinstance(line, ast.Expr) for line in body):
            raise Unreadable("statements, expected calls")
        found: list[ast.expr] = [line.value for line in body if isinstance(line, ast.Expr)]
        while len(found) == 1 and isinstance(found[0], ast.List | ast.Tuple):
            found = found[0].elts
        return [_python_call(call) for call in found]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(f"no calls: {type(error).__name__}") from None


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args:
        raise Unreadable("expected calls whose arguments have names")
    name = ast.unparse(node.func)
    if _NAME.fullmatch(name) is None or any(argument.arg is None for argument in node.keywords):
        raise Unreadable("expected the name of a function, and arguments with names")
    return Call(name, {str(argument.arg): _value(argument.value) for argument in node.keywords})


def _value(node: ast.expr) -> Any:
    """A literal's value; of anything else, a variable or a lambda for instance, what is written."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {str(_value(key)): _value(value) for key, value in zip(node.keys, node.values) if key}
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return ast.unparse(node)
    return value if isinstance(value, str | int | float | None) else ast.unparse(node)
