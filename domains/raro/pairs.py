"""A question with an expert's and a policy's answer: what a critic judges and the buffer stores."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Pair:
    """Answers are normalised. `seq` is the row number in the buffer, 0 before it has one; `created_at` is
    seconds since the epoch; `model_version` counts the texts trained when the policy answered."""

    question_id: str
    question: str
    expert_answer: str
    policy_answer: str
    task: str
    model_version: int
    created_at: float
    seq: int = 0

    @property
    def sha(self) -> str:
        """SHA-256 of the compact JSON list [question_id, expert_answer, policy_answer], as hex."""
        fields = [self.question_id, self.expert_answer, self.policy_answer]
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ReplayStats:
    """Rows now, distinct pairs and duplicates ever offered, and the largest row number."""

    size: int
    arrivals: int
    duplicates: int
    watermark: int

    @property
    def duplicate_rate(self) -> float:
        """Share of offered pairs that were in the buffer already."""
        return self.duplicates / max(1, self.arrivals + self.duplicates)


class PairBuffer(Protocol):
    """A buffer that all actor workers share: a file, or redis.

    Every call blocks: run it off the event loop.
    """

    def watermark(self) -> int:
        """Largest row number so far; 0 when empty."""

    def put(self, pair: Pair) -> bool:
        """Store a pair; False, changing nothing but a counter, when it is there already."""

    def sample(self, rng: Random, n: int, at_or_below: int) -> list[Pair]:
        """`n` pairs, uniform with replacement, of rows up to a watermark; none if there are no rows."""

    def stats(self) -> ReplayStats:
        """Counters for the metrics."""

    def backup(self, path: Path) -> None:
        """Write a copy that `restore` reads, under a temporary name first."""

    def restore(self, path: Path) -> None:
        """Replace everything by a copy. Raises ValueError if the copy is missing or damaged."""

    def close(self) -> None:
        """Give the connection back."""
