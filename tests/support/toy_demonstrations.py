"""Sources of demonstrations for tests of the recipe; its worker processes import this file, not the tests."""

import os
import random
from collections.abc import Iterable

from pipelinerl.extras.bootstrap.demonstrations import Demonstration

WORDS = ["cold", "chain", "audit", "store", "staff", "growth", "share", "budget", "plan", "region", "vendor"]


def toy(seed: int, phase: str) -> Iterable[Demonstration]:
    draw = random.Random(f"{seed}:{phase}")
    for _ in range(100):
        word = draw.choice(WORDS)
        value = 10 + 3 * WORDS.index(word)
        exact = phase == "clean"
        yield Demonstration(
            "echo", f"how much is {word} {draw.randint(0, 999)}?", f'{{"answer":" {value}%"}}', exact
        )


def deadly(seed: int, phase: str) -> Iterable[Demonstration]:
    os._exit(7)


def broken(seed: int, phase: str) -> Iterable[Demonstration]:
    raise ValueError(f"no world {seed}")
