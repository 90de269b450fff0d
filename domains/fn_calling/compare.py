"""Whether calls are the wanted ones, by the rules of BFCL's comparison of syntax trees.

A wanted call is `{name: {argument: [allowed value, ...]}}`; an allowed value `""` means that the argument may
be left out. Functions are JSON schemas whose types have the names of Python, Java or JavaScript.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from domains.fn_calling.calls import Call

Function = Mapping[str, Any]
Wanted = Mapping[str, Mapping[str, Sequence[Any]]]
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("string", "String", "char", "byte", "short"), (str,)),
    **dict.fromkeys(("integer", "int", "long", "Bigint"), (int,)),
    **dict.fromkeys(("float", "number", "double"), (float, int)),
    **dict.fromkeys(("boolean", "Boolean"), (bool,)),
    **dict.fromkeys(("array", "tuple", "Array", "ArrayList", "Set", "Queue", "Stack"), (list,)),
    **dict.fromkeys(("dict", "object", "HashMap", "Hashtable"), (dict,)),
}
"""Of values as JSON has them; any other name, `any` for instance, stands for every type."""
_MARKS = re.compile(r"[ ,./\-_*^]")


def same_text(text: str) -> str:
    """Texts are compared without case, blanks and marks, so that "April 1, 2024" is "april 1 2024"."""
    return _MARKS.sub("", text).lower().replace("'", '"')


def is_call(call: Call, wanted: Wanted, functions: Sequence[Function]) -> bool:
    """Whether a call is the wanted one: its function, and of each argument an allowed value of its type."""
    ((name, allowed),) = wanted.items()
    function = next((one for one in functions if one["name"] == name), None)
    # Engines' own tool calls have no dots in names.
    if function is None or call.name not in (name, name.replace(".", "_")):
        return False
    schema = function["parameters"]
    if any(required not in call.arguments for required in schema.get("required", ())):
        return False
    if any(argument not in call.arguments and "" not in values for argument, values in allowed.items()):
        return False
    properties = schema.get("properties") or {}
    return all(
        argument in allowed
        and argument in properties
        and _fits(value, allowed[argument], properties[argument])
        for argument, value in call.arguments.items()
    )


def example(wanted: Wanted, required: Collection[str]) -> Call:
    """A call with the first allowed value of each argument that is `required` or not optional."""
    ((name, allowed),) = wanted.items()
    return Call(name, _chosen(allowed, required))


def _chosen(allowed: Mapping[str, Any], required: Collection[str] = ()) -> dict[str, Any]:
    given = {key: options for key, options in allowed.items() if key in required or not _may_lack(options)}
    return {key: _given(_first(options)) for key, options in given.items()}


def _may_lack(options: Any) -> bool:
    return isinstance(options, list) and "" in options


def _first(options: Any) -> Any:
    if not isinstance(options, list) or not options:
        return options
    # `""` among others means that an argument may be left out; alone it is a text.
    return next((option for option in options if option != ""), "")


def _given(option: Any) -> Any:
    if isinstance(option, Mapping):
        return _chosen(option)
    return [_given(one) for one in option] if isinstance(option, list) else option


def _fits(value: Any, allowed: Sequence[Any], schema: Mapping[str, Any]) -> bool:
    types = _TYPES.get(str(schema.get("type")))
    typed = [option for option in allowed if option != ""]
    # An answer may be of another type than the schema says: a variable's name instead of its value.
    if types is not None and not _is_of(value, types) and not any(_is_of(value, (type(o),)) for o in typed):
        return False
    if isinstance(value, list) and isinstance(items := schema.get("items"), Mapping):
        return any(isinstance(option, list) and _fit_each(value, option, items) for option in allowed)
    return any(_is_same(value, option) for option in allowed)


def _fit_each(values: Sequence[Any], options: Sequence[Any], schema: Mapping[str, Any]) -> bool:
    """Items one by one: each of the type that the list's schema says of its items, as BFCL checks them."""
    return len(values) == len(options) and all(
        _fits(value, [option], schema) for value, option in zip(values, options)
    )


def _is_of(value: Any, types: tuple[type, ...]) -> bool:
    return type(value) in types  # a bool is an int only to isinstance


def _is_same(value: Any, option: Any) -> bool:
    """Equal, texts as `same_text`; in a wanted object each key has a list of allowed values of its own."""
    if isinstance(value, str) and isinstance(option, str):
        return same_text(value) == same_text(option)
    if isinstance(value, list) and isinstance(option, list):
        return len(value) == len(option) and all(map(_is_same, value, option))
    if isinstance(value, Mapping) and isinstance(option, Mapping):
        return all(key in option and _is_among(one, option[key]) for key, one in value.items()) and all(
            key in value or (isinstance(some, list) and "" in some) for key, some in option.items()
        )
    return isinstance(value, bool) == isinstance(option, bool) and bool(value == option)


def _is_among(value: Any, options: Any) -> bool:
    if not isinstance(options, list):
        return _is_same(value, options)
    return any(_is_same(value, option) for option in options) or _is_same(value, options)


def matched(calls: Sequence[Call], wanted: Sequence[Wanted], functions: Sequence[Function]) -> int:
    """How many of the wanted calls are made, each call counted for one of them, in whatever order.

    A largest matching, by augmenting paths: taken greedily, a call could be spent on an entry that another
    one fits as well.
    """
    fits = [[is_call(call, one, functions) for call in calls] for one in wanted]
    holder: dict[int, int] = {}  # call -> wanted

    def place(entry: int, seen: set[int]) -> bool:
        for at, fit in enumerate(fits[entry]):
            if fit and at not in seen:
                seen.add(at)
                if at not in holder or place(holder[at], seen):
                    holder[at] = entry
                    return True
        return False

    return sum(place(entry, set()) for entry in range(len(wanted)))
