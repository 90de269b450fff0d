"""Random draws keyed by (seed, component, index): what one component draws never moves another's draws.

Only `random.Random.random()` is used, whose sequence for a given integer seed Python guarantees.
"""

import random
from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """A stream of draws that depends on its key alone."""

    __slots__ = ("_next",)

    def __init__(self, seed: int, component: str, *index: int) -> None:
        key = ":".join((str(seed), component, *map(str, index)))
        digest = blake2b(key.encode(), digest_size=8).digest()
        self._next = random.Random(int.from_bytes(digest, "big")).random

    def below(self, n: int) -> int:
        """An integer in 0..n-1."""
        return int(self._next() * n)

    def between(self, low: int, high: int) -> int:
        """An integer in low..high, both included."""
        return low + int(self._next() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._next() < probability

    def pick(self, items: Sequence[T]) -> T:
        """One item."""
        return items[int(self._next() * len(items))]

    def weighted(self, items: Sequence[T], weights: Sequence[float]) -> T:
        """One item with probability proportional to its weight."""
        mark = self._next() * sum(weights)
        for item, weight in zip(items, weights):
            mark -= weight
            if mark < 0:
                return item
        return items[-1]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """A new list in random order (Fisher-Yates)."""
        result = list(items)
        for i in range(len(result) - 1, 0, -1):
            j = int(self._next() * (i + 1))
            result[i], result[j] = result[j], result[i]
        return result
