"""Tool calls written in tags, as Qwen3-Coder and later models of Qwen write them.

    <function=search><parameter=query>
    rivers
    </parameter><parameter=limit>
    3
    </parameter></function>

Called by the embedded engine's chat route and by the judge of `fn_calling`. A value is text; the schema of
its parameter says what it stands for, as in vLLM's parsers `qwen3_coder` and `qwen3_xml`.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

BEGIN = "<function="
Schemas = Mapping[str, Mapping[str, Any]]
"""By function: the JSON schema of its arguments, an object with `properties`."""
_TAG = re.compile(r"<(function|parameter)=([^<>\n]*)>|</(function|parameter)>")
_OTHER_NAMES = {
    **dict.fromkeys(("str", "text", "varchar", "char", "enum"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "uint", "uint32", "uint64"), "integer"),
    **dict.fromkeys(("long", "short", "unsigned", "bigint"), "integer"),
    **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
    **dict.fromkeys(("bool",), "boolean"),
    **dict.fromkeys(("dict", "hashmap", "hashtable"), "object"),
    **dict.fromkeys(("arr", "list", "tuple", "sequence", "arraylist", "set", "queue", "stack"), "array"),
}


class NotTagged(ValueError):
    """The text is no sequence of calls in this notation."""


def schemas_of(tools: Sequence[Any]) -> dict[str, Mapping[str, Any]]:
    """The schemas of tools, `{function: {name, parameters}}` or `{name, parameters}`; others are left out."""
    found = {}
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(schema := function.get("parameters"), Mapping):
            found[str(function.get("name"))] = schema
    return found


def read_tagged(text: str, schemas: Schemas) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments of all calls in their order, in linear time. Raises NotTagged.

    A parameter without its end tag ends where the next one or the end of its function is; the last end tags
    may be cut off. Other text outside of parameters, and a name given twice, are errors.
    """
    calls: list[tuple[str, dict[str, Any]]] = []
    inside, parameter = False, None
    at = 0
    for tag in _TAG.finditer(text):
        opens, name, closes = tag.groups()
        if parameter is not None:
            # Tags of a function may be part of a value, such as a text about calls, but its end is its end.
            if opens == "function":
                continue
            _set(calls[-1], parameter, text[at : tag.start()], schemas)
            parameter = None
            if closes == "parameter":
                at = tag.end()
                continue
        elif text[at : tag.start()].strip():
            raise NotTagged("text between the tags of a call")
        at = tag.end()
        if opens == "function" and not inside and name.strip():
            calls.append((name.strip(), {}))
            inside = True
        elif opens == "parameter" and inside and name.strip():
            parameter = name.strip()
        elif closes == "function" and inside:
            inside = False
        else:
            raise NotTagged(f"{tag[0]} where it means nothing")
    if parameter is not None:
        _set(calls[-1], parameter, text[at:], schemas)
    elif not calls or text[at:].strip():
        raise NotTagged("no call" if not calls else "text behind the tags of a call")
    return calls


def _set(call: tuple[str, dict[str, Any]], parameter: str, written: str, schemas: Schemas) -> None:
    name, arguments = call
    if parameter in arguments:
        raise NotTagged(f"the parameter {parameter} is given twice")
    # The notation puts a value on lines of its own; further blanks are the value's.
    value = written.removeprefix("\n").removesuffix("\n")
    properties = schemas.get(name, {}).get("properties")
    schema = properties.get(parameter) if isinstance(properties, Mapping) else None
    arguments[parameter] = typed(value, schema)


def typed(text: str, schema: Any) -> Any:
    """The value that a text stands for; the text itself where no type of the schema fits, or without any."""
    named = _types(schema, 0)
    nothing = "null" in named or ("string" not in named and not named.isdisjoint(_READERS))
    if nothing and text.lower() in ("null", "none"):
        return None
    for name, read in _READERS.items():
        if name in named:
            try:
                return read(text)
            except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                continue
    return text


def _types(schema: Any, depth: int) -> set[str]:
    """The types that a schema allows, by their usual names."""
    if not isinstance(schema, Mapping) or depth > 8:
        return set()
    given = schema.get("type")
    names = {str(one).lower() for one in (given if isinstance(given, list) else [given]) if one is not None}
    found = {_OTHER_NAMES.get(name, name) for name in names}
    for key in ("anyOf", "oneOf", "allOf"):
        options = schema.get(key)
        for option in options if isinstance(options, list) else []:
            found |= _types(option, depth + 1)
    return found


def _number(text: str) -> float | int:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("no finite number")
    return int(value) if value.is_integer() else value


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("no boolean")
    return text.lower() == "true"


def _container(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = json.loads(text)
        except ValueError:
            # Templates that write a value by `| string` teach models Python's notation.
            value = ast.literal_eval(text.strip())
        value = json.loads(json.dumps(value, allow_nan=False))  # what JSON makes of it, or an error
        if not isinstance(value, kind):
            raise ValueError(f"no {kind.__name__}")
        return value

    return read


_READERS: dict[str, Callable[[str], Any]] = {
    "integer": int,
    "number": _number,
    "boolean": _boolean,
    "object": _container(dict),
    "array": _container(list),
}
"""In the order in which they are tried: a text that several types could mean is the narrowest."""
