"""Countdown questions: every solvable multiset of numbers once, split by a hash, with a random solution.

Called by the loader in `data.py` and by the demonstrations.
"""

import hashlib
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from domains.blocks import Block
from domains.raro.countdown import multisets, solutions, solvable

_BLOCK = 4096
_SENTENCE = "Use the numbers {numbers}, each exactly once, with + - * / and parentheses to make {target}."


class CountdownSpec(Block):
    """Settings of the generator."""

    n_numbers: int = Field(4, ge=2, le=5)
    """Numbers per question."""
    number_range: tuple[int, int] = (1, 50)
    """Smallest and largest number."""
    target: int | tuple[int, int] = 24
    """One target, or the smallest and largest."""
    integer_only: bool = True
    """Solutions go through non-negative integers only."""
    min_solutions: PositiveInt = 1
    """Least number of distinct solutions."""
    max_solutions: PositiveInt | None = None
    """Largest number of distinct solutions."""
    split_by: Literal["numbers", "instance"] = "numbers"
    """What lies in one split only: a multiset of numbers, or a multiset with its target."""
    shares: dict[str, float] = Field(default_factory=lambda: {"train": 0.8, "val": 0.05, "test": 0.15})
    """Split -> share of the hash space; must not change when data are added."""
    sizes: dict[str, int] = Field(default_factory=lambda: {"train": 10_000, "val": 500, "test": 1_000})
    """Split -> questions; a larger size only adds questions."""
    salt: str = "raro"
    """Changes splits, order and the drawn solutions."""
    style: Literal["sentence", "short"] = "sentence"
    """Wording of the question; `short` is `3 8 11 = 24`."""

    @model_validator(mode="after")
    def _check(self) -> "CountdownSpec":
        low, high = self.number_range
        if not 0 <= low <= high:
            raise ValueError(f"number_range={self.number_range}: expected 0 <= smallest <= largest")
        if isinstance(self.target, tuple) and self.target[0] > self.target[1]:
            raise ValueError(f"target={self.target}: the smallest target is above the largest")
        if abs(sum(self.shares.values()) - 1.0) > 1e-9 or min(self.shares.values()) < 0:
            raise ValueError(f"shares={self.shares}: must be at least 0 and add up to 1")
        return self

    def __hash__(self) -> int:
        """Of equal settings, so that what is made from them can be kept."""
        return hash(self.model_dump_json())

    @property
    def targets(self) -> range:
        """All targets."""
        low, high = self.target if isinstance(self.target, tuple) else (self.target, self.target)
        return range(low, high + 1)


@dataclass(frozen=True, slots=True)
class CountdownItem:
    """One question with the expert's answer."""

    id: str
    question: str
    expert_answer: str
    numbers: tuple[int, ...]
    target: int


@lru_cache(maxsize=32)
def generate(spec: CountdownSpec, split: str) -> tuple[CountdownItem, ...]:
    """The questions of a split. Raises ValueError for an unknown split or when too few are solvable."""
    if split not in spec.sizes or split not in spec.shares:
        raise ValueError(
            f"split {split!r} is unknown; raro.data.countdown.sizes and .shares name {', '.join(spec.sizes)}"
        )
    items, wanted = list[CountdownItem](), spec.sizes[split]
    keys = _candidates(spec, split)
    for start in range(0, len(keys), _BLOCK):
        block = keys[start : start + _BLOCK]
        good = solvable(block[:, :-1], block[:, -1], spec.integer_only)
        for row in block[good].tolist():
            item = _item(spec, tuple(row[:-1]), row[-1])
            if item is not None:
                items.append(item)
            if len(items) == wanted:
                return tuple(items)
    raise ValueError(
        f"raro.data.countdown.sizes.{split}={wanted}: only {len(items)} questions are solvable; widen "
        "number_range or target, or lower the size"
    )


def _candidates(spec: CountdownSpec, split: str) -> np.ndarray:
    """Rows (numbers, target) of a split in the order of their hashes, int64 `[N, n + 1]`."""
    numbers = multisets(spec.n_numbers, *spec.number_range)
    rows = []
    for row in numbers.tolist():
        if spec.split_by == "numbers" and split_of(spec, row) != split:
            continue
        for target in spec.targets:
            if spec.split_by == "instance" and split_of(spec, [*row, target]) != split:
                continue
            rows.append([*row, target])
    rows.sort(key=lambda row: _hash(spec.salt, "order", *row))
    return np.array(rows, np.int64).reshape(-1, spec.n_numbers + 1)


def split_of(spec: CountdownSpec, key: list[int]) -> str:
    """The split of a multiset (or of a multiset and its target) by its hash alone."""
    place = _hash(spec.salt, "split", *key) / 2**64
    for split, share in spec.shares.items():
        place -= share
        if place < 0:
            return split
    return next(reversed(spec.shares))


def _hash(*parts: str | int) -> int:
    return int.from_bytes(hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8).digest())


def _item(spec: CountdownSpec, numbers: tuple[int, ...], target: int) -> CountdownItem | None:
    found = solutions(numbers, target, spec.integer_only)
    if len(found) < spec.min_solutions or (
        spec.max_solutions is not None and len(found) > spec.max_solutions
    ):
        return None
    draw = random.Random(_hash(spec.salt, "solution", *numbers, target))
    name = "-".join(map(str, numbers)) + f"={target}"
    return CountdownItem(name, question(spec, numbers, target), draw.choice(found), numbers, target)


def question(spec: CountdownSpec, numbers: tuple[int, ...], target: int) -> str:
    """The question's text."""
    if spec.style == "short":
        return f"{' '.join(map(str, numbers))} = {target}"
    return _SENTENCE.format(numbers=", ".join(map(str, numbers)), target=target)
