"""Rows of published data sets as problems with tests: each form is known by its columns.

Called by the loader. Nothing of a row is executed: texts that hold JSON or pickled text are read as such.
"""

import ast
import base64
import io
import json
import pickle
import random
import re
import sys
import zlib
from collections.abc import Callable, Sequence
from itertools import chain
from keyword import iskeyword
from typing import Any

from domains.coding.verifier_api import same_output, same_value
from domains.rows import asked

Row = dict[str, Any]
Context = dict[str, Any]
FORMS: dict[str, str] = {
    "taco": "question, input_output (JSON of inputs, outputs, fn_name), starter_code, difficulty (BAAI/TACO)",
    "apps": "question, input_output (JSON of inputs, outputs, fn_name), starter_code (codeparrot/apps)",
    "livecodebench": "question_content, public_test_cases, private_test_cases, starter_code, metadata",
    "mbpp": "prompt or text, code, test_list, test_imports or test_setup_code (MBPP), test (MBPP+)",
    "humaneval": "prompt, entry_point, test (openai/openai_humaneval, HumanEval+)",
    "intellect3": "question, info (JSON with tests: inputs, outputs, fn_name) (INTELLECT-3-RL)",
    "mixed": "prompt (messages), reward_model.ground_truth (JSON of inputs, outputs, call_type)",
}
"""Beginnings of names of data sets, and the columns of their files."""
STUB = "\n    pass\n"
_CUT, _CUT_TAIL = re.compile(r"\d\s?(?:\.\.\.|\u2026)\Z"), 16
"""How sites shorten the numbers of long tests, and how many characters tell it."""


def read_row(row: Any) -> tuple[str, Context]:
    """The task's text and what its verdict needs. Raises ValueError saying what is missing."""
    if not isinstance(row, dict):
        raise ValueError(f"a {type(row).__name__}, expected an object")
    for columns, read in _READERS:
        if all(row.get(column) not in (None, "") for column in columns):
            return read(row)
    found = ", ".join(list(map(str, row))[:10]) or "none"
    raise ValueError(f"no problem with tests; columns are {found}; known are those of {', '.join(FORMS)}")


def refuse_imports(context: Context, packages: Sequence[str]) -> None:
    """Raises ValueError for tests that import what is neither in the library nor one of `packages`."""
    known = {*sys.stdlib_module_names, *packages}
    left: list[ast.AST] = [ast.parse(text) for text in (*context.get("tests", ()), context.get("prefix", ""))]
    while left:
        node = left.pop()
        if isinstance(node, ast.Try):  # what may fail
            continue
        left += ast.iter_child_nodes(node)
        named = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        named += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        for name in named:
            if (package := name.partition(".")[0]) not in known:
                raise ValueError(
                    f"its tests import {package}, which no program may, so that every one fails; set "
                    f"coding.packages=[{','.join((*packages, package))}]"
                )


def reference_of(row: Row) -> str | None:
    """The program that a row's data set calls right; None where it has none."""
    if isinstance(row.get("canonical_solution"), str) and isinstance(row.get("prompt"), str):
        return f"{row['prompt']}{row['canonical_solution']}"
    if isinstance(row.get("code"), str) and "test_list" in row:
        return str(row["code"])
    try:
        solutions = _parsed(row.get("solutions"), "solutions")
    except ValueError:
        return None
    listed = solutions if isinstance(solutions, list) else []
    return next((one for one in listed if isinstance(one, str)), None)


def _text(row: Row, column: str) -> str:
    value = row[column]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{column} {str(value)[:60]!r}: expected a text")
    return value


def _parsed(value: Any, what: str) -> Any:
    """JSON, if it is a text."""
    if not isinstance(value, str | bytes):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what}: no JSON: {' '.join(str(error).split())[:80]}") from None


def _pairs(tests: Any, what: str, kind: str | None = None) -> Context:
    """Inputs and outputs, for a function if they name one."""
    if not isinstance(tests, dict):
        raise ValueError(f"{what}: a {type(tests).__name__}, expected an object with inputs and outputs")
    inputs, outputs, name = tests.get("inputs"), tests.get("outputs"), tests.get("fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs or not outputs:
        raise ValueError(f"{what}: no inputs or no outputs")
    if len(inputs) != len(outputs):
        raise ValueError(f"{what}: {len(inputs)} inputs and {len(outputs)} outputs; leave the row out")
    context = {"call_type": kind or ("fn" if name else "std"), "inputs": inputs, "outputs": outputs}
    _refuse_unsolvable(context | {"fn_name": name}, what)
    return context | ({"fn_name": name} if name else {})


def _refuse_unsolvable(context: Context, what: str) -> None:
    """Raises ValueError for tests that no program passes, or a program that does nothing."""
    outputs, name = context["outputs"], context.get("fn_name")
    if name and (not str(name).split(".")[-1].isidentifier() or iskeyword(str(name))):
        raise ValueError(f"{what}: fn_name {str(name)[:40]!r}: is no name of a function")
    functional = context["call_type"] == "fn"
    for given, kind in ((outputs, "output"), (context["inputs"], "input")):
        missing = [one for one in given if one != one or (one is None and not functional)]
        if missing:
            raise ValueError(f"{what}: an {kind} is {missing[0]}: is missing in the data; leave the row out")
        if cut := [one for one in given if not functional and _CUT.search(_shown(one)[-_CUT_TAIL:])]:
            raise ValueError(
                f"{what}: an {kind} ends with {_shown(cut[0])[-12:]!r}: it was cut; leave the row out"
            )
    same = same_value if functional else lambda one, other: same_output(_shown(one), _shown(other))
    wanted: dict[str, Any] = {}
    for given, output in zip(context["inputs"], outputs):
        first = wanted.setdefault(str(given), output)
        if first is not output and not same(first, output) and not same(output, first):
            raise ValueError(
                f"{what}: the input {str(given)[:40]!r} has two outputs, {str(first)[:40]!r} and "
                f"{str(output)[:40]!r}, so that no program passes; leave the row out"
            )
    if all(one is None if functional else not _shown(one) for one in outputs):
        raise ValueError(f"{what}: every output is empty, so that doing nothing passes; leave the row out")


def _shown(output: Any) -> str:
    return "\n".join(map(str, output) if isinstance(output, list) else [str(output)]).strip()


def _refuse_no_verdict(tests: Sequence[str], what: str) -> None:
    """Raises ValueError for Python that fails for no program: `print(f(1))`, or `assert (f(1), 1)`."""
    for node in chain.from_iterable(ast.walk(ast.parse(test)) for test in tests):
        if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Tuple | ast.Constant):
            return
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if isinstance(node, ast.Raise) or "assert" in name.lower() or name in ("fail", "exit"):
            return
    raise ValueError(f"{what}: {tests[0].strip()[:60]!r}: asserts nothing, so that every program passes it")


def _refuse_no_python(test: str, what: str) -> None:
    try:
        ast.parse(test)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{what}: {test.strip()[:60]!r}: no Python: {str(error)[:60]}") from None


def _with_starter(task: str, starter: Any) -> str:
    starter = str(starter or "").strip("\n")
    return f"{task}\n\nBegin with:\n```python\n{starter}\n```" if starter.strip() else task


def _contest(row: Row) -> tuple[str, Context]:
    task = _with_starter(_text(row, "question"), row.get("starter_code"))
    return task, _pairs(_parsed(row["input_output"], "input_output"), "input_output")


def _intellect(row: Row) -> tuple[str, Context]:
    info = _parsed(row["info"], "info")
    tests = _parsed(info.get("tests"), "info.tests") if isinstance(info, dict) else None
    return _text(row, "question"), _pairs(tests, "info.tests")


def _mixed(row: Row) -> tuple[str, Context]:
    task, model = asked(row["prompt"], "prompt"), row["reward_model"]
    truth = _parsed(model.get("ground_truth") if isinstance(model, dict) else None, "ground_truth")
    if not isinstance(truth, dict):
        raise ValueError("reward_model.ground_truth: expected an object")
    if truth.get("call_type") == "assert":
        tests = truth.get("assert_case")
        if not isinstance(tests, list) or not tests or not truth.get("fn_name"):
            raise ValueError("reward_model.ground_truth: no assert_case or no fn_name")
        for test in tests:
            _refuse_no_python(str(test), "assert_case")
        _refuse_no_verdict(list(map(str, tests)), "assert_case")
        return task, _assertions([str(test) for test in tests], [str(truth["fn_name"])], "")
    return task, _pairs(truth, "reward_model.ground_truth")


def _assertions(tests: list[str], functions: list[str], setup: str, classes: Sequence[str] = ()) -> Context:
    named = {name: name for name in (*functions, *classes)}
    context = {"call_type": "assert", "tests": [f"{setup}\n{test}" for test in tests], "functions": named}
    return context | ({"classes": list(classes)} if classes else {})


def _live(row: Row) -> tuple[str, Context]:
    cases = _cases(row["public_test_cases"], "public_test_cases")
    cases += _cases(row.get("private_test_cases") or "[]", "private_test_cases")
    if not cases:
        raise ValueError("public_test_cases and private_test_cases: no test")
    metadata = _parsed(row.get("metadata") or "{}", "metadata")
    if not isinstance(metadata, dict):
        raise ValueError(f"metadata: a {type(metadata).__name__}, expected an object")
    context: Context = {"call_type": "std"}
    if cases[0].get("testtype") == "functional":
        context = {"call_type": "fn", "fn_name": str(metadata.get("func_name"))}
        if not metadata.get("func_name"):
            raise ValueError("metadata: no func_name, which functional tests call")
    context |= {key + "s": [case[key] for case in cases] for key in ("input", "output")}
    _refuse_unsolvable(context, "test cases")
    return _with_starter(_text(row, "question_content"), row.get("starter_code")), context


def chosen_cases(row: Any, context: Context, most: int | None, index: int) -> Context:
    """Inputs and outputs of at most `most` tests (None, 0: all) of a row of LiveCodeBench, else nothing.

    Upstream's loader takes half of them from the beginning of the public ones and draws the others from the
    private ones, by the row's `index`.
    """
    if not most or "public_test_cases" not in row or len(context.get("inputs", ())) <= most:
        return {}
    many = len(_cases(row["public_test_cases"], "public_test_cases"))
    shown = min(many, most // 2)
    private = range(many, len(context["inputs"]))
    drawn = random.Random(42 + index).sample(private, min(most - shown, len(private)))
    return {key: [context[key][at] for at in (*range(shown), *drawn)] for key in ("inputs", "outputs")}


def _cases(value: Any, what: str) -> list[dict[str, Any]]:
    """A list of `{input, output, testtype}`: JSON, or JSON pickled, compressed and as base64."""
    if isinstance(value, str) and not value.lstrip().startswith("["):
        try:
            value = _Texts(io.BytesIO(zlib.decompress(base64.b64decode(value)))).load()
        except Exception as error:
            raise ValueError(f"{what}: neither JSON nor packed JSON: {str(error)[:60]}") from None
    cases = _parsed(value, what)
    good = isinstance(cases, list) and all(
        isinstance(c, dict) and {"input", "output"} <= c.keys() for c in cases
    )
    if not good:
        raise ValueError(f"{what}: expected a list of objects with input and output")
    return cases


class _Texts(pickle.Unpickler):
    """Reads what holds built-in values only: a pickle that names anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"names {module}.{name}")


def _mbpp(row: Row) -> tuple[str, Context]:
    tests = row["test_list"]
    if not isinstance(tests, list) or not tests:
        raise ValueError("test_list: expected a list of assertions")
    code = _text(row, "code")
    more = row.get("test")  # MBPP+ has its further tests in one program
    tests = [*map(str, tests), *([more] if isinstance(more, str) and more.strip() else [])]
    for test in tests:
        _refuse_no_python(test, "test_list" if test is not more else "test")
    functions = [name for name in _defined(code, ast.FunctionDef) if _names(name, *tests)]
    if not functions:
        raise ValueError("test_list: tests none of the functions of code")
    _refuse_no_verdict(tests, "test_list")
    setup = row.get("test_imports") or row.get("test_setup_code") or ""
    setup = "\n".join(map(str, setup)) if isinstance(setup, list) else str(setup)
    _refuse_no_python(setup, "test_imports or test_setup_code")
    task = _text(row, "prompt" if row.get("prompt") else "text")
    shown = f"{task}\n\nIt has to pass this test:\n```python\n{tests[0]}\n```"
    own = {name: text for name, text in _defined(code, ast.ClassDef).items() if _names(name, setup, *tests)}
    if own:
        written = "\n\n".join((*own.values(), setup)).replace("\r\n", "\n")
        shown += f"\n\nTests use these classes, which the program has to define:\n```python\n{written}\n```"
    return shown, _assertions(tests, functions, setup, tuple(own))


def _names(name: str, *texts: Any) -> bool:
    return any(re.search(rf"\b{re.escape(name)}\b", str(text)) for text in texts)


def _defined(code: str, kind: type[ast.FunctionDef | ast.ClassDef]) -> dict[str, str]:
    """Functions or classes of a program, by name, with their text."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"code: no Python: {str(error)[:60]}") from None
    found = [node for node in tree.body if isinstance(node, kind)]
    return {node.name: ast.get_source_segment(code, node) or "" for node in found}


def _human(row: Row) -> tuple[str, Context]:
    """The beginning of the file, which may have helpers, belongs to the program and to its tests."""
    prompt, name = _text(row, "prompt"), _text(row, "entry_point")
    if not _names(f"def {name}", prompt):
        raise ValueError(f"entry_point {name[:40]!r}: prompt defines no such function")
    if not _names("def check", _text(row, "test")):
        raise ValueError("test: defines no check(candidate), which is called")
    _refuse_no_python(prompt + STUB, "prompt")
    _refuse_no_python(_text(row, "test"), "test")
    _refuse_no_verdict([_text(row, "test")], "test")
    # Tests may call the function by its own name too, which the beginning of the file has just defined.
    tests = f"{prompt}{STUB}\n{name} = candidate\n{_text(row, 'test')}\ncheck(candidate)\n"
    context = {"call_type": "assert", "tests": [tests], "functions": {"candidate": name}}
    return f"Complete this function:\n```python\n{prompt}\n```", context | {"prefix": prompt + STUB}


_READERS: tuple[tuple[tuple[str, ...], Callable[[Row], tuple[str, Context]]], ...] = (
    (("question", "input_output"), _contest),
    (("question_content", "public_test_cases"), _live),
    (("question", "info"), _intellect),
    (("prompt", "reward_model"), _mixed),
    (("test_list", "code"), _mbpp),
    (("prompt", "entry_point", "test"), _human),
)
