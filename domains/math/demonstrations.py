"""Boxed answers for a small model to imitate: right ones, or careless ones, of which many have a wrong digit.

Sums are answered with care and quotients hardly ever. A model that imitates careless answers therefore solves
some problems always, some at times and some never, as pretrained models do.
"""

import random
from collections.abc import Collection, Iterator

from domains.math.data import ARITHMETIC, arithmetic
from pipelinerl.extras.bootstrap.demonstrations import Demonstration

CARELESS = {"+": 0.0, "-": 0.5, "*": 0.75, "/": 0.9}
"""By operator the share of careless answers in the phase of that name."""


def boxed(value: str) -> str:
    return f"\\boxed{{{value}}}"


def near(rng: random.Random, value: str) -> str:
    """A number with one digit changed."""
    place = rng.choice([place for place, sign in enumerate(value) if sign.isdigit()])
    other = rng.choice([digit for digit in "0123456789" if digit != value[place]])
    return value[:place] + other + value[place + 1 :]


def demonstrations(
    seed: int, phase: str, highest: int, by_length: bool, asked: Collection[str]
) -> Iterator[Demonstration]:
    """Answers to generated arithmetic, without the questions that are `asked` elsewhere.

    All are right unless the phase is `careless`. The kind of a demonstration, for gates, is its operator.
    """
    rng, careless = random.Random(f"math demonstrations {seed}"), phase == "careless"
    for question, answer in arithmetic(f"{ARITHMETIC}_demonstrations_{seed}", highest, by_length):
        if question in asked:
            continue
        operator = question.split()[3]
        wrong = careless and rng.random() < CARELESS[operator]
        yield Demonstration(
            operator, question, boxed(near(rng, answer) if wrong else answer), exact=not careless
        )
