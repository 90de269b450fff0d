"""Training and test apart: which part a dataset's name means, and which problems only evaluations ask.

A generated question belongs to one side by a hash of its text alone, so that the two are disjoint whatever
the seeds, the options and the names are; the rows of a file by their place in an order that never changes.
Called by the loaders of domains.
"""

import random
from collections.abc import Sequence
from hashlib import sha256
from typing import TypeVar

T = TypeVar("T")
SPLIT_SEED = 42
"""As upstream splits the same rows."""

PARTS = ("train", "test")
GENERATED = "dataset %s: %d generated problems, as data_dir names no folder; %s are of files"
"""What a loader logs where upstream's file of the same name plays published rows."""


def part_of(name: str, parts: Sequence[str] = PARTS) -> str:
    """The part with which a dataset's name begins. Raises ValueError for any other."""
    part = next((part for part in parts if str(name).startswith(part)), None)
    if part is None:
        raise ValueError(f"dataset {name!r}: a name begins with {' or '.join(parts)}")
    return part


def check_counts(count: int, test_count: int, held_out: float) -> None:
    """Raises ValueError for counts of generated problems, or a share of the evaluation's, that mean none."""
    if count < 1 or test_count < 1 or not 0.0 < held_out < 1.0:
        raise ValueError(
            f"count={count}, test_count={test_count}, held_out={held_out}: counts begin at 1, and the share "
            "lies between 0 and 1"
        )


def is_held_out(question: str, share: float) -> bool:
    """Whether only the evaluation asks this question; true of `share` of all texts."""
    return int.from_bytes(sha256(question.encode()).digest()[:8]) < share * 2**64


def split_rows(
    found: Sequence[T | None], part: str, train_ratio: float, test_size: int | None = None
) -> list[T]:
    """The rows of `train`, `test` or `all`; `test_size` counts before the ratio.

    None stands for a row of the file that is left out. It keeps its place, so that no choice of rows moves
    another row from one part to the other.
    """
    order = list(range(len(found)))
    if part != "all":
        random.Random(SPLIT_SEED).shuffle(order)
        end = len(found) - min(test_size, len(found)) if test_size else int(len(found) * train_ratio)
        order = order[:end] if part == "train" else order[end:]
    return [row for at in order if (row := found[at]) is not None]
