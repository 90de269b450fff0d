"""BFCL's reference answers as calls, right and changed, for the test of `fn_calling`'s comparison."""

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from keyword import iskeyword
from pathlib import Path
from typing import Any

from domains.fn_calling.dataset import BFCL, load_problems
from domains.fn_calling.verifier_api import verify_fn_calling_answer

Calls = list[dict[str, Any]]
Problem = dict[str, Any]
DEFECTS = {
    "live_simple_106-63-0": "its lists of allowed values are not lists of lists",
    "live_simple_112-68-0": "arguments without any allowed value",
    "live_multiple_862-181-3": "the reference leaves a required argument out",
    "live_multiple_964-207-0": "the reference names an argument that the function does not have",
}
"""References that no call can equal; the package's own checker refuses them too."""


def reference(problem: Problem) -> Calls:
    """The reference answer as calls: of each argument the first allowed value, optional ones left out."""
    context = problem["reward_context"]
    required = {one["name"]: one["parameters"].get("required", ()) for one in context["function"]}
    calls = []
    for wanted in context["ground_truth"]:
        ((name, allowed),) = wanted.items()
        given = {
            key: _first(values)
            for key, values in allowed.items()
            if "" not in values or key in required.get(name, ())
        }
        calls.append({"name": name, "arguments": given})
    return calls


def _first(values: Sequence[Any]) -> Any:
    return _plain(next((value for value in values if value != ""), ""))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _first(some) if isinstance(some, list) else some
            for key, some in value.items()
            if not (isinstance(some, list) and "" in some)
        }
    return [_plain(one) for one in value] if isinstance(value, list) else value


def as_json(calls: Calls) -> str:
    return f"<tool_calls>{json.dumps(calls)}</tool_calls>" if calls else "None of them."


def as_python(calls: Calls) -> str | None:
    """None where an argument has the name of a keyword of Python, as `from`."""
    if any(iskeyword(key) for call in calls for key in call["arguments"]):
        return None
    said = [
        f"{call['name']}({', '.join(f'{key}={value!r}' for key, value in call['arguments'].items())})"
        for call in calls
    ]
    return f"[{', '.join(said)}]" if calls else "None of them."


def as_tags(calls: Calls, problem: Problem) -> str | None:
    """As Qwen3-Coder's template writes calls: a text as it is, anything else as JSON.

    None where an argument is no text although its schema says so: tags cannot tell `2` from `"2"`.
    """
    said = ""
    for call in calls:
        (schema,) = [one for one in problem["reward_context"]["function"] if one["name"] == call["name"]]
        properties = schema["parameters"]["properties"]
        if any(
            properties.get(key, {}).get("type") == "string" and not isinstance(value, str)
            for key, value in call["arguments"].items()
        ):
            return None
        values = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in call["arguments"].items()
        }
        inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        said += f"<tool_call>\n<function={call['name']}>\n{inside}</function>\n</tool_call>\n"
    return said or "None of them."


def renamed(calls: Calls, problem: Problem) -> Calls | None:
    calls[0]["name"] += "_2"
    return calls


def one_too_many(calls: Calls, problem: Problem) -> Calls | None:
    return [*calls, calls[0]]


def one_too_few(calls: Calls, problem: Problem) -> Calls | None:
    return calls[1:] if len(calls) > 1 else None


def foreign_argument(calls: Calls, problem: Problem) -> Calls | None:
    calls[-1]["arguments"]["nobody_asked"] = 1
    return calls


def argument_left_out(calls: Calls, problem: Problem) -> Calls | None:
    given = calls[0]["arguments"]
    if not given:
        return None
    given.pop(next(iter(given)))
    return calls


def other_value(calls: Calls, problem: Problem) -> Calls | None:
    return _changed(calls, lambda value: _other(value))


def other_type(calls: Calls, problem: Problem) -> Calls | None:
    return _changed(calls, lambda value: [value] if not isinstance(value, list) else {"value": 1})


def _changed(calls: Calls, change: Callable[[Any], Any]) -> Calls | None:
    given = calls[0]["arguments"]
    if not given:
        return None
    name = next(iter(given))
    given[name] = change(given[name])
    return calls


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return "neither"
    if isinstance(value, int | float):
        return value + 91_357
    if isinstance(value, str):
        return f"{value} zzz"
    return [*value, "zzz"] if isinstance(value, list) else {**value, "zzz": 1}


CHANGES = (
    renamed,
    one_too_many,
    one_too_few,
    foreign_argument,
    argument_left_out,
    other_value,
    other_type,
)


def changed(problem: Problem) -> Iterator[tuple[str, Calls]]:
    """Each way in which the reference answer can be made wrong, and what it becomes."""
    for change in CHANGES:
        calls = change(copy.deepcopy(reference(problem)), problem)
        if calls is not None:
            yield change.__name__, calls


def problems_of(data: Path | None) -> list[Problem]:
    """All problems with reference calls. Raises ValueError with one line where the data is not there."""
    names = [f"bfcl_{category}" for category in BFCL if "relevance" not in category]
    return load_problems(names, data_dir=None if data is None else str(data))


def is_right(text: str, problem: Problem) -> bool:
    return bool(verify_fn_calling_answer(text, problem["reward_context"])["answer_status"] == "correct")


def judged(problems: Sequence[Problem]) -> dict[str, dict[str, int]]:
    """By category: problems, right references in each form, changed ones and how many of them are wrong."""
    table: dict[str, Counter[str]] = {}
    for problem in problems:
        row = table.setdefault(problem["reward_context"]["category"], Counter())
        row["problems"] += 1
        calls = reference(problem)
        row["defects"] += problem["id"].partition("-")[2] in DEFECTS
        row["json right"] += is_right(as_json(calls), problem)
        python = as_python(calls)
        tags = as_tags(calls, problem)
        row["tags"] += tags is not None
        row["tags right"] += tags is not None and is_right(tags, problem)
        row["python"] += python is not None
        row["python right"] += python is not None and is_right(python, problem)
        for _, wrong in changed(problem):
            row["changed"] += 1
            row["changed wrong"] += not is_right(as_json(wrong), problem)
    return {category: dict(row) for category, row in table.items()}
