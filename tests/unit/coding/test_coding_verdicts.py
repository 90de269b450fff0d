"""Verdicts of completions: which code is read, what passes, and how each failure is called."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from domains.coding.formats import read_row
from domains.coding.tiny import context, tasks
from domains.coding.verifier_api import Verification, evaluate, extract_code, same_output, same_value
from pipelinerl.extras.sandbox.host import Limits, Sandbox
from tests.support.sandbox_needed import need_a_sandbox

need_a_sandbox()

ADD = {"call_type": "fn", "fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, [7]]}
NOTHING = {"call_type": "fn", "fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [None, [None]]}
SUM = {"call_type": "std", "inputs": ["1 2\n", ["3 4"]], "outputs": ["3\n", ["7"]]}
TESTED = {"call_type": "assert", "tests": ["assert add(1, 2) == 3"] * 2, "functions": {"add": "add"}}


def fenced(code: str) -> str:
    return f"Here:\n```python\n{code}\n```\n"


in_the_box = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box() -> AsyncIterator[Sandbox]:
    """One for all, as in a run."""
    async with Sandbox(Limits(cpu_s=1, wall_s=100)) as found:
        yield found


@pytest.mark.parametrize(
    "completion, code",
    [
        ("no code", ""),
        ("```python\na\n```\nor\n```py\nb\n```", "b"),
        ("```\na\n```", "a"),
        ("```python\na\n```\nthen\n```\n>>> a\n3\n```", "a"),
        ("```\n>>> a\n```", ">>> a"),
        ("```python\nnever closed", ""),
        ("```Python\r\na\n```", "a"),
        ("```json\n{}\n```", ""),
    ],
)
def test_which_block_is_the_program(completion: str, code: str) -> None:
    assert extract_code(completion) == code


GRADED: list[tuple[dict[str, Any], str, list[str], str]] = [
    (ADD, "def add(a, b): return a + b", ["passed", "passed"], "correct"),
    (ADD, "class Solution:\n    def add(self, a, b): return (a + b)", ["passed", "passed"], "correct"),
    (ADD, "def add(a, b): return 3", ["passed", "failed"], "wrong"),
    (ADD, "def add(a, b): return a +", ["compile_error"] * 2, "unparsable"),
    (ADD, "def add(a, b): return a / 0", ["runtime_error"] * 2, "wrong"),
    (ADD, "def other(a, b): return a + b", ["runtime_error"] * 2, "wrong"),
    (ADD, "def add(a, b): exec('a +')", ["runtime_error"] * 2, "wrong"),
    (NOTHING, "def add(a, b): return", ["passed", "passed"], "correct"),
    (NOTHING, "def add(a, b): exit()", ["runtime_error"] * 2, "wrong"),
    (NOTHING, "import os\ndef add(a, b): os._exit(0)", ["runtime_error"] * 2, "wrong"),
    (NOTHING, "import os\ndef add(a, b): os.write(3, b'{nonsense')", ["runtime_error"] * 2, "wrong"),
    (SUM, "print(sum(map(int, input().split())))", ["passed", "passed"], "correct"),
    (SUM, "print(sum(map(int, input().split())), end='.0 ')", ["passed", "passed"], "correct"),
    (SUM, "print(sum(map(int, input().split())))\nexit(1)", ["runtime_error"] * 2, "wrong"),
    (SUM, "print(3)", ["passed", "failed"], "wrong"),
    (TESTED, "def add(a, b): return a + b", ["passed"] * 2, "correct"),
    (TESTED, "def add(a, b): return 4", ["failed"] * 2, "wrong"),
    (TESTED, "def add(a, b): raise KeyError", ["runtime_error"] * 2, "wrong"),
    (TESTED, "def add(a, b", ["compile_error"] * 2, "unparsable"),
    (TESTED, "import os; os._exit(0)", ["runtime_error"] * 2, "wrong"),
]


@in_the_box
@pytest.mark.parametrize("given, code, statuses, status", GRADED)
async def test_a_verdict(
    box: Sandbox, given: dict[str, Any], code: str, statuses: list[str], status: str
) -> None:
    found = await evaluate(box, fenced(code), given)
    assert (found.statuses, found.answer_status) == (statuses, status), found.error
    assert found.total == 2 and found.passed == statuses.count("passed")
    assert bool(found.error) == any(one not in ("passed", "failed") for one in statuses)


async def test_a_program_without_end_has_a_verdict() -> None:
    """It sleeps; that a loop is ended as well, tests/unit/sandbox/test_attempts.py sees."""
    async with Sandbox(Limits(cpu_s=1, wall_s=1)) as box:
        found = await evaluate(box, fenced("import time\ndef add(a, b): time.sleep(999)"), ADD)
    assert (found.statuses, found.answer_status) == (["timeout"] * 2, "unparsable") and found.error


@in_the_box
async def test_no_code_is_no_answer_and_tests_are_bounded(box: Sandbox) -> None:
    assert (await evaluate(box, "I cannot.", ADD)).answer_status == "no_answer"
    found = await evaluate(box, fenced("def add(a, b): return 3"), ADD, max_tests=1)
    assert (found.total, found.answer_status) == (1, "correct")
    assert Verification().answer_status == "wrong", "without a test nothing is right"


@in_the_box
async def test_a_row_of_humaneval_is_graded(box: Sandbox) -> None:
    prompt = "def helper(n):\n    return n\n\ndef twice(n):\n    '''Twice.'''\n"
    row = {"prompt": prompt, "entry_point": "twice", "test": "def check(f):\n    assert helper(f(2)) == 4"}
    _, given = read_row(row)
    assert (
        await evaluate(box, fenced("def twice(n): return helper(n) * 2"), given)
    ).answer_status == "correct"
    # The tests have a helper of their own.
    cheat = "def helper(n): return 4\ndef twice(n): return 0"
    assert (await evaluate(box, fenced(cheat), given)).answer_status == "wrong"


TREE = "class Node:\n    def __init__(self, x):\n        self.data, self.left, self.right = x, None, None\n"
HEIGHT = "def height(node):\n    return 1 + max(height(node.left), height(node.right)) if node else 0\n"
PAIR = (
    "class Pair(object):\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n"
    "    def sum(self):\n        return self.a + self.b\n"
)
# Rows whose tests make objects of the program's own classes, or hand it a type.
MBPP: dict[str, dict[str, Any]] = {
    "tree": {
        "text": "How high?",
        "code": TREE + HEIGHT,
        "test_setup_code": "root = Node(1)\r\nroot.left = Node(2)\r\nroot.left.right = Node(4)",
        "test_list": [
            "assert height(root) == 3",
            "assert root.left.right.data == 4 and height(root.left) == 2",
            "assert height(root.right) == 0",
        ],
    },
    "pairs": {
        "text": "Sort.",
        "code": PAIR + "def rising(pairs, n):\n    return sorted(pairs[:n], key=Pair.sum)\n",
        "test_list": [
            "assert [p.a for p in rising([Pair(5, 24), Pair(15, 2), Pair(27, 4)], 3)] == [15, 5, 27]",
            "assert rising([Pair(1, 2)], 1)[0].sum() == 3",
            "p = Pair(1, 2)\nassert rising([p], 1) == [p]",
            "p = Pair(1, 2)\nassert rising([p, Pair(0, 0)], 2) != [p, p]",
        ],
    },
    "types": {
        "text": "Remove.",
        "code": "def without(xs, kind):\n    return [x for x in xs if not isinstance(x, kind)]\n",
        "test_list": [
            "assert without([1, 'a', 2.5], int) == ['a', 2.5]",
            "assert without([1, 'a'], str) == [1]",
        ],
    },
}
SLY = """
class Node:
    def __init__(self, *a): self.data = self.left = self.right = self
    def __eq__(self, other): return True
    def __getattr__(self, name): return self
Pair = Node
def height(node): return Node()
rising = without = lambda *a: Node()
"""


@in_the_box
@pytest.mark.parametrize("kind", MBPP)
async def test_objects_of_the_programs_own_classes_cross_and_stay_its_own(box: Sandbox, kind: str) -> None:
    row = MBPP[kind]
    task, given = read_row(row)
    found = await evaluate(box, fenced(row["code"]), given)
    assert found.answer_status == "correct", found.error
    classes = {"tree": ["Node"], "pairs": ["Pair"], "types": []}[kind]
    assert given.get("classes", []) == classes and all(f"class {name}" in task for name in classes)
    assert "root.left.right" in task or kind != "tree", "the test makes no sense without its beginning"
    # An object that calls itself equal to everything is no right answer.
    assert "passed" not in (await evaluate(box, fenced(SLY), given)).statuses[:3]


@in_the_box
async def test_tests_may_call_the_function_by_its_own_name(box: Sandbox) -> None:
    prompt = "def third(xs):\n    'Every third.'\n"
    test = (
        "def check(candidate):\n    assert candidate([1]) == third([1])\n    assert candidate([1, 2, 3]) == 3"
    )
    _, given = read_row({"prompt": prompt, "entry_point": "third", "test": test})
    assert (
        await evaluate(box, fenced(prompt + "    return xs[2] if xs[2:] else 0"), given)
    ).answer_status == "correct"
    assert (await evaluate(box, fenced(prompt + "    return xs"), given)).answer_status == "wrong"


UNITTEST = (
    "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(up(1), 2)\n"
)


@in_the_box
@pytest.mark.parametrize(
    "end",
    [
        "unittest.main()",
        "if __name__ == '__main__':\n    unittest.main(argv=[''], exit=False)",
        "unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))",
    ],
    ids=["main", "no_exit", "runner"],
)
async def test_tests_of_unittest_decide(box: Sandbox, end: str) -> None:
    test = f"{UNITTEST}def check(candidate): pass\n{end}"
    _, given = read_row({"prompt": "def up(x):\n", "entry_point": "up", "test": test})
    for program, statuses in (("return x + 1", ["passed"]), ("return x", ["failed"])):
        assert (await evaluate(box, fenced(f"def up(x):\n    {program}"), given)).statuses == statuses


@in_the_box
async def test_every_kind_of_problem_made_here_is_solved_by_its_solution(box: Sandbox) -> None:
    import random

    for task in tasks()[::97] + tasks()[:18]:
        found = await evaluate(box, fenced(task.program()), context(task, random.Random(1)), max_tests=1)
        assert found.answer_status == "correct", (task, found.error)


@pytest.mark.parametrize(
    "value, wanted, same",
    [(3, 3, True), (3, [3], True), ([3], [3], True), ((1, (2,)), [1, [2]], True), (3, "3", True),
     ("3", "3", True), ([1, 2], "[1, 2]", True), (None, 3, False), (3, 4, False), ("a", "b", False),
     ([[1]], [[[1]]], True), (True, "true", True), ("x", '"x"', True),
     # JSON has no tuples, and texts for keys.
     ({"a": (1, (2,))}, {"a": [1, [2]]}, True), ({1: 2}, {"1": 2}, True), ({1: 2}, {"1": 3}, False),
     ({1: 2, "1": 3}, {"1": 3}, False), ({True: 2}, {"True": 2}, False)],
)  # fmt: skip
def test_same_value(value: object, wanted: object, same: bool) -> None:
    assert same_value(value, wanted) is same


@pytest.mark.parametrize(
    "printed, wanted, same",
    [("3\n", "3", True), (" 3 \n\n", "3\n", True), ("3.0 2", "3 2.00", True), ("3\n4", "3 4", False),
     ("YES", "yes", False), ("", "", True), ("", "3", False), ("nan", "3", False), ("1e99", "3", False),
     ("9" * 10_000, "3", False), ("snan", "3", False),
     ("3", "sNaN1", False), ("nan", "nan", True), ("snan", "snan", True), ("1e999999", "1e999998", False),
     ("1e99999999999999999999", "3", False), ("-inf", "-Infinity", True),
     ("1_000", "1000", False), ("\uff11\uff12", "12", False)],
)  # fmt: skip
def test_same_output(printed: str, wanted: str, same: bool) -> None:
    assert same_output(printed, wanted) is same


SHOWN_IN_USE = (
    ("def add(a, b):\n    return a + b", "print(add(1, 2))"),
    ("import math\n\nasync def other(): ...\nadd = lambda a, b: a + b", "assert add(1, 2) == 3"),
    ("class Solution:\n    def add(self, a, b):\n        return a + b", "Solution().add(1, 2)"),
)


@pytest.mark.parametrize("program, use", SHOWN_IN_USE)
@pytest.mark.parametrize("tested", [ADD, TESTED])
def test_a_block_that_shows_the_use_is_not_the_program(
    program: str, use: str, tested: dict[str, Any]
) -> None:
    """Of two programs the last counts; of a program and its use the one that tests can call."""
    assert extract_code(fenced(program) + fenced(use), tested) == program
    assert (
        extract_code(fenced("def add(a, b):\n    return 0") + fenced(program) + fenced(use), tested)
        == program
    )
    assert extract_code(f"```\n{program}\n```\n" + fenced(use), tested) == program
    assert extract_code(fenced(program) + fenced(use), SUM) == use
    assert extract_code(fenced("def added(a, b): ...") + fenced(use), tested) == use
