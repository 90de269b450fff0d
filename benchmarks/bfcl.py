"""Does the comparison of `fn_calling` agree with BFCL's reference answers, over its whole data?

    python -m benchmarks.bfcl [--data FILE] [--out FILE]

`--data` is the wheel `bfcl-eval` or its folder of data; the installed package without it. Every reference
answer is written as JSON tool calls, as Python calls and in Qwen3-Coder's tags, which must be right; then
changed in each of several ways, which must be wrong. Where the package's own checker can be imported from a
wheel (nothing else of it is needed), both judge the same calls. The table goes to `--out`
(`results/bfcl.json` beside this file).
"""

import copy
import importlib
import json
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from keyword import iskeyword
from pathlib import Path
from typing import Any

from benchmarks._figures import RESULTS, at_least, command_line, report, write_json
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


def package_checker(data: Path) -> Callable[[Problem, Calls], bool]:
    """The package's own verdict, from a wheel; its table of models would import every provider."""
    sys.path.insert(0, str(data))
    models = types.ModuleType("bfcl_eval.constants.model_config")
    known = {"any": types.SimpleNamespace(underscore_to_dot=False)}
    models.MODEL_CONFIG_MAPPING = known  # type: ignore[attr-defined]
    sys.modules[models.__name__] = models
    checker = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
    language = importlib.import_module("bfcl_eval.constants.enums").Language.PYTHON

    def verdict(problem: Problem, calls: Calls) -> bool:
        context = problem["reward_context"]
        output = [{call["name"]: call["arguments"]} for call in calls]
        arguments = (
            context["function"],
            output,
            context["ground_truth"],
            language,
            context["category"],
            "any",
        )
        return bool(checker.ast_checker(*arguments)["valid"])

    return verdict


def agreement(problems: Sequence[Problem], data: Path) -> dict[str, Any]:
    """How often both say the same of references and changed ones of Python's categories, and where not."""
    verdict, counts, where = package_checker(data), Counter[str](), list[str]()
    for problem in problems:
        if "java" in problem["reward_context"]["category"]:
            continue  # the package wants their values as texts in the syntax of the language
        for name, calls in [("reference", reference(problem)), *changed(problem)]:
            mine = is_right(as_json(calls), problem)
            try:
                theirs: bool | None = verdict(problem, calls)
            except (TypeError, AttributeError, KeyError, IndexError):
                theirs = None  # it takes types for granted that these calls do not have
            counts["compared"] += theirs is not None
            counts["same"] += mine is theirs
            counts["no verdict of the package"] += theirs is None
            if theirs is not None and mine is not theirs:
                where.append(f"{problem['id']} {name}: here {mine}")
    return {**counts, "differences": where}


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv)
    try:
        problems = problems_of(options.data)
    except ValueError as error:
        print(f"bfcl: {error}", file=sys.stderr)
        return 2
    table = judged(problems)
    total = Counter[str]()
    for row in table.values():
        total.update(row)
    whole = total["problems"] - total["defects"]
    figures = [
        at_least("references as JSON: right", total["json right"] / whole, "", 1.0),
        at_least(
            "references as Python: right",
            total["python right"] / (total["python"] - total["defects"]),
            "",
            1.0,
        ),
        at_least(
            "references in tags: right", total["tags right"] / (total["tags"] - total["defects"]), "", 1.0
        ),
        at_least("changed references: wrong", total["changed wrong"] / total["changed"], "", 1.0),
    ]
    same: dict[str, Any] = {}
    if options.data is not None and options.data.suffix == ".whl":
        same = agreement(problems, options.data)
        figures.append(at_least("same verdict as the package", same["same"] / same["compared"], "", 0.99))
    out = options.out or RESULTS / "bfcl.json"
    missed = report("bfcl", figures, {"defects": DEFECTS}, out)
    kept = json.loads(out.read_text())
    write_json(out, {**kept, "table": table, "total": dict(total), "package": same})
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
