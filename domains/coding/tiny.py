"""Small programming problems made here, with tests: functions and programs that read.

Every problem is made of an expression, which is its reference solution, and of words for it. Whether the
evaluation or the training asks a question is decided by a hash of its text, whatever the seeds are; those of
pairs, lists and texts are few, and only trained.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any

NAME = "tiny"
FUNCTION = "solve"
TESTS = 4
HELD_OUT = 0.2
DIGITS = range(2, 10)
ARITHMETIC = ("number", "two steps")
FAMILIES = (*ARITHMETIC, "pair", "list", "text")


@dataclass(frozen=True)
class Task:
    """`expression` of the arguments is what `words` says."""

    family: str
    arguments: str
    words: str
    expression: str
    reads: bool = False
    """A program that reads one integer `n` and prints, instead of a function."""

    @property
    def question(self) -> str:
        if self.reads:
            return f"Read an integer n and print {self.words}."
        return f"Write {FUNCTION}({self.arguments}) that returns {self.words}."

    def program(self, expression: str | None = None) -> str:
        """The shortest one, with another expression if one is given."""
        if self.reads:
            return f"n = int(input())\nprint({expression or self.expression})"
        return f"def {FUNCTION}({self.arguments}):\n    return {expression or self.expression}"

    @property
    def held_out(self) -> bool:
        """Whether only the evaluation asks it."""
        if self.family not in ARITHMETIC:
            return False
        return int.from_bytes(sha256(self.question.encode()).digest()[:8]) < HELD_OUT * 2**64


ONE_NUMBER = {"plus": "n + {}", "minus": "n - {}", "times": "n * {}", "modulo": "n % {}"}
OTHERS = (
    ("pair", "a, b", "the larger of a and b", "max(a, b)"),
    ("pair", "a, b", "the smaller of a and b", "min(a, b)"),
    ("pair", "a, b", "the sum of a and b", "a + b"),
    ("pair", "a, b", "the product of a and b", "a * b"),
    ("pair", "a, b", "a minus b", "a - b"),
    ("pair", "a, b", "the distance of a and b", "abs(a - b)"),
    ("list", "xs", "the sum of xs", "sum(xs)"),
    ("list", "xs", "the largest of xs", "max(xs)"),
    ("list", "xs", "the smallest of xs", "min(xs)"),
    ("list", "xs", "the length of xs", "len(xs)"),
    ("list", "xs", "the first of xs", "xs[0]"),
    ("list", "xs", "the last of xs", "xs[-1]"),
    ("list", "xs", "xs in order", "sorted(xs)"),
    ("list", "xs", "xs backwards", "xs[::-1]"),
    ("text", "s", "s backwards", "s[::-1]"),
    ("text", "s", "s in capitals", "s.upper()"),
    ("text", "s", "the length of s", "len(s)"),
    ("text", "s", "s twice", "s * 2"),
)


def tasks() -> list[Task]:
    """All there are, always in the same order."""
    found = [Task(*other) for other in OTHERS]
    for reads in (False, True):
        for first, one in ONE_NUMBER.items():
            for a in DIGITS:
                found.append(Task("number", "n", f"n {first} {a}", one.format(a), reads))
                for second, other in ONE_NUMBER.items():
                    expression = other.replace("n", f"({one.format(a)})", 1)
                    found += [
                        Task("two steps", "n", f"n {first} {a}, {second} {b}", expression.format(b), reads)
                        for b in DIGITS
                    ]
    return found


@cache
def training() -> dict[str, list[Task]]:
    """What may be trained, by family."""
    return {
        family: [task for task in tasks() if task.family == family and not task.held_out]
        for family in FAMILIES
    }


def context(task: Task, rng: random.Random) -> dict[str, Any]:
    """Tests in the form of contests."""
    inputs = [_inputs(task, rng) for _ in range(TESTS)]
    # An expression of this file, with values of this file.
    names = [name.strip() for name in task.arguments.split(",")]
    outputs = [eval(task.expression, dict(zip(names, values))) for values in inputs]
    if task.reads:
        return {
            "call_type": "std",
            "inputs": [f"{values[0]}\n" for values in inputs],
            "outputs": [f"{value}\n" for value in outputs],
        }
    return {"call_type": "fn", "fn_name": FUNCTION, "inputs": inputs, "outputs": [[v] for v in outputs]}


def _inputs(task: Task, rng: random.Random) -> list[Any]:
    if task.family == "list":
        return [[rng.randint(-50, 50) for _ in range(rng.randint(2, 8))]]
    if task.family == "text":
        return ["".join(rng.choices("abcdefgh XY", k=rng.randint(2, 9)))]
    return [rng.randint(-99, 99) for _ in range(2 if task.family == "pair" else 1)]


def problems(name: str, count: int) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Tasks of a data set with their tests; the same for the same name.

    Those of the training are drawn from the families in turn and may repeat; those of the evaluation are
    different ones. Raises ValueError for a name that is of neither.
    """
    part = name.removeprefix(NAME).lstrip("_")
    if not part.startswith(("train", "test")):
        raise ValueError(f"dataset {name!r}: a name begins with {NAME}_train or {NAME}_test")
    rng = random.Random(name)
    if part.startswith("test"):
        held_out = [task for task in tasks() if task.held_out]
        wanted = rng.sample(held_out, min(count, len(held_out)))
    else:
        wanted = [rng.choice(training()[FAMILIES[index % len(FAMILIES)]]) for index in range(count)]
    for task in wanted:
        yield task, context(task, rng)
