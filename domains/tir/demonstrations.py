"""Dialogues for a small model to imitate: most of them are those of somebody who does not use the tool well.

More often than not the question is answered at once, with a number that only looks right, so that the most
likely answer of a model that imitates them is a wrong one. Of the others some have a mistake in the program
or do not read what it wrote.
"""

import random
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from domains.math.data import ARITHMETIC, arithmetic
from domains.math.demonstrations import boxed, near
from domains.tir.tool import FENCE, block
from pipelinerl.extras.bootstrap.demonstrations import Demonstration
from pipelinerl.extras.bootstrap.formats import ASSISTANT, END, USER

PER_SEED = 200
BY_HEAD = 0.55
"""Share of dialogues without a program."""
KINDS = {"right": 0.7, "another operator": 0.1, "repaired": 0.05, "not repaired": 0.05, "not read": 0.1}
"""Of those with one."""
OPERATORS = "+-*/"
NOT_CLOSED = """File "<program>", line 1
    print({expression}
         ^
SyntaxError: '(' was never closed"""
_QUESTION = re.compile(r"What is (\d+) (.) (\d+)\?")


class Turn(NamedTuple):
    """An answer, and what the tool wrote to it; the last one has nothing."""

    answer: str
    result: str | None = None


def program(expression: str, close: str = ")") -> str:
    return f"{FENCE}python\nprint({expression}{close}\n{FENCE}"


def dialogue(rng: random.Random, question: str, answer: str) -> tuple[str, list[Turn]]:
    """What it is a dialogue of, and its turns. Raises ValueError for a question that is not generated."""
    found = _QUESTION.fullmatch(question)
    if found is None:
        raise ValueError(f"{question!r}: only generated arithmetic has demonstrations")
    a, operator, b = found.groups()
    if rng.random() < BY_HEAD:
        return "by head", [Turn(boxed(near(rng, answer)))]
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    if kind == "another operator":
        operator = rng.choice(OPERATORS.replace(operator, ""))
    expression = f"{a} {operator} {b}"
    # As Python writes it: of a quotient with a decimal point.
    written = str(eval(expression))
    runs = Turn(program(expression), block(written))
    if kind == "not read":
        return kind, [runs, Turn(boxed(near(rng, written)))]
    if kind.endswith("repaired"):
        fails = Turn(program(expression, close=""), block(NOT_CLOSED.format(expression=expression)))
        rest = [runs, Turn(boxed(written))] if kind == "repaired" else [Turn(boxed(near(rng, answer)))]
        return kind, [fails, *rest]
    return kind, [runs, Turn(boxed(written))]


def demonstrations(seed: int, highest: int, evaluations: Sequence[str]) -> Iterator[Demonstration]:
    """Each answer of some dialogues; none is about a question that the data sets `evaluations` ask."""
    rng = random.Random(f"tir demonstrations {seed}")
    asked = {question for name in evaluations for question, _ in arithmetic(name, highest)}
    for question, answer in islice(arithmetic(f"{ARITHMETIC}_demonstrations_{seed}", highest), PER_SEED):
        if question in asked:
            continue
        kind, turns = dialogue(rng, question, answer)
        prompt = question
        for turn in turns:
            yield Demonstration(kind, prompt, turn.answer, exact=False)
            prompt += f"{ASSISTANT}{turn.answer}{END}{USER}{turn.result}"
