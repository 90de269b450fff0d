"""Does the code of a completion pass a problem's tests? It runs in the sandbox, and is judged here."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from domains.fences import fenced, program_in
from domains.math.rewards import AnswerStatus
from pipelinerl.base.thoughts import answer_part
from pipelinerl.extras.sandbox.host import Outcome, Sandbox

Context = Mapping[str, Any]
TestStatus = Literal["passed", "failed", "compile_error", "runtime_error", "timeout"]
_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_ASSERTED = ("AssertionError", "FAILED (failures=")
"""How what tests write ends, by themselves and under unittest."""
SHOWN = 500
"""Characters of a text that stay in a record."""
_LONGEST_NUMBER = 400


@dataclass
class Verification:
    """What the tests of one completion said."""

    passed: int = 0
    total: int = 0
    empty_response: bool = False
    statuses: list[TestStatus] = field(default_factory=list)
    error: str = ""
    """The end of what the first test that did not run to its end wrote."""

    @property
    def compile_error(self) -> bool:
        return "compile_error" in self.statuses

    @property
    def runtime_error(self) -> bool:
        return "runtime_error" in self.statuses

    @property
    def timeout_error(self) -> bool:
        return "timeout" in self.statuses

    @property
    def answer_status(self) -> AnswerStatus:
        """The status that rewards are given for."""
        if self.empty_response:
            return "no_answer"
        if self.compile_error or self.timeout_error:
            return "unparsable"
        return "correct" if 0 < self.passed == self.total else "wrong"


def extract_code(completion: str, context: Context | None = None) -> str:
    """The program of a completion, as `program_in` chooses it behind the thoughts; "" without any.

    `context` says what the tests will call.
    """
    context = context or {}
    called = [
        *context.get("functions", {}).values(),
        *([context["fn_name"]] if context.get("fn_name") else []),
    ]
    return program_in(fenced(answer_part(completion)), map(str, called))


async def evaluate(
    box: Sandbox, completion: str, context: Mapping[str, Any], max_tests: int = 0
) -> Verification:
    """Run at most `max_tests` tests (0: all), each in a process of its own."""
    code = extract_code(completion, context)
    return await judged(box, code, context, max_tests) if code else Verification(empty_response=True)


async def judged(box: Sandbox, code: str, context: Mapping[str, Any], max_tests: int = 0) -> Verification:
    """`evaluate` for a program that is known as one."""
    kind = context["call_type"]
    many = len(context["tests"]) if kind == "assert" else min(len(context["inputs"]), len(context["outputs"]))
    many = min(many, max_tests) if max_tests else many
    test = {"assert": _asserted, "fn": _called}.get(kind, _printed)
    program = f"{context['prefix']}\n{code}" if context.get("prefix") else code
    results = await asyncio.gather(*(test(box, program, context, index) for index in range(many)))
    found = Verification(total=many)
    for status, stderr in results:
        found.statuses.append(status)
        found.passed += status == "passed"
        if status not in ("passed", "failed"):
            found.error = found.error or stderr[-SHOWN:] or status
    return found


def _ended(outcome: Outcome) -> TestStatus | None:
    """How a program that did not come to its end failed; None for one that did."""
    if outcome.status == "timeout":
        return "timeout"
    if outcome.ok:
        return None
    last = outcome.stderr.rstrip().rpartition("\n")[2]
    # Raised by the program itself, the last line is the same but there are frames above it.
    if last.startswith(_SYNTAX) and "Traceback" not in outcome.stderr.partition("\n")[0]:
        return "compile_error"
    return "runtime_error"


async def _printed(box: Sandbox, code: str, context: Context, index: int) -> tuple[TestStatus, str]:
    given, wanted = context["inputs"][index], context["outputs"][index]
    outcome = await box.run(code, _lines(given), preamble=True)
    failed = _ended(outcome)
    return failed or ("passed" if same_output(outcome.stdout, _lines(wanted)) else "failed"), outcome.stderr


def _lines(value: Any) -> str:
    """Some rows have lists of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


async def _called(box: Sandbox, code: str, context: Context, index: int) -> tuple[TestStatus, str]:
    arguments = _arguments(context["inputs"][index])
    outcome, value = await box.call(code, str(context["fn_name"]), arguments, preamble=True)
    # A program that ends itself has returned nothing, not None.
    failed = _ended(outcome) or ("runtime_error" if outcome.value is None else None)
    right = same_value(value, context["outputs"][index])
    return failed or ("passed" if right else "failed"), outcome.stderr


async def _asserted(
    box: Sandbox, code: str, context: Mapping[str, Any], index: int
) -> tuple[TestStatus, str]:
    program, tests = await box.check(
        code,
        context["functions"],
        context["tests"][index],
        classes=context.get("classes", ()),
        preamble=True,
    )
    if tests.ok:
        return "passed", ""
    if "timeout" in (program.status, tests.status):
        return "timeout", program.stderr
    failed = _ended(program)
    if failed is None and tests.stderr.rstrip().rpartition("\n")[2].startswith(_ASSERTED):
        return "failed", ""
    return failed or "runtime_error", program.stderr or tests.stderr


def _arguments(given: Any) -> list[Any]:
    """A list of arguments, or a text with one in JSON on each line."""
    if not isinstance(given, str):
        return given if isinstance(given, list) else [given]
    try:
        return [json.loads(line) for line in given.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return [given]


def same_value(value: Any, wanted: Any) -> bool:
    """Whether a result is the expected one; a text may hold it as JSON, a list of one may wrap it."""
    if isinstance(wanted, str):
        try:
            parsed = json.loads(wanted)
        except (ValueError, RecursionError):
            parsed = wanted
        if _plain(value) == parsed:
            return True
    wrapped = isinstance(wanted, list) and len(wanted) == 1
    return _plain(value) == wanted or (wrapped and same_value(value, wanted[0]))


def _plain(value: Any) -> Any:
    """What JSON cannot tell apart alike: tuples as lists, and keys that are whole numbers as texts."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        keys = [str(key) if type(key) is int else key for key in value]
        # Of two keys that JSON would make one, neither may be lost.
        keys = keys if len(set(keys)) == len(keys) else list(value)
        return dict(zip(keys, map(_plain, value.values()), strict=True))
    return value


def same_output(printed: str, wanted: str) -> bool:
    """Line by line, without blanks around them; numbers are compared as numbers."""
    ours, theirs = ([line.split() for line in text.strip().splitlines()] for text in (printed, wanted))
    if len(ours) != len(theirs):
        return False
    return all(one == other or _same_numbers(one, other) for one, other in zip(ours, theirs, strict=True))


def _same_numbers(one: list[str], other: list[str]) -> bool:
    numbers = _numbers(one)
    return numbers is not None and numbers == _numbers(other)


def _numbers(words: list[str]) -> list[Decimal] | None:
    """The numbers that all words are; None where one is none, and for NaN, which cannot be compared.

    `1_000` and digits of other scripts are none, although Python reads them.
    """
    if any(len(word) > _LONGEST_NUMBER or "_" in word or not word.isascii() for word in words):
        return None
    try:
        numbers = [Decimal(word) for word in words]
    except ArithmeticError:
        return None
    return None if any(number.is_nan() for number in numbers) else numbers
