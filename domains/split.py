"""Generated questions apart: which part a dataset's name means, and which questions only evaluations ask.

A question belongs to one side by a hash of its text alone, so that the two are disjoint whatever the seeds,
the options and the names are. Called by the loaders of domains that generate their questions.
"""

from collections.abc import Sequence
from hashlib import sha256

PARTS = ("train", "test")


def part_of(name: str, parts: Sequence[str] = PARTS) -> str:
    """The part with which a dataset's name begins. Raises ValueError for any other."""
    part = next((part for part in parts if str(name).startswith(part)), None)
    if part is None:
        raise ValueError(f"dataset {name!r}: a name begins with {' or '.join(parts)}")
    return part


def is_held_out(question: str, share: float) -> bool:
    """Whether only the evaluation asks this question; true of `share` of all texts."""
    return int.from_bytes(sha256(question.encode()).digest()[:8]) < share * 2**64
