"""What decides whether an order that `benchmarks.arms` looks for holds: numbers, told in words for people.

Results keep a gate as one object: `holds`, the numbers of what decides it, and `figures`, the same in words.
Readers take the numbers. Of results whose rows are not kept these are rounded as the words are: to three
decimals, shares of texts to two.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Of two models over the chains of all seeds, with its 95 % interval; and of each seed.

    An interval over pooled chains does not show how much runs differ.
    """

    value: float
    low: float
    high: float
    n: int
    by_seed: Sequence[float]

    @property
    def words(self) -> str:
        seeds = ", ".join(f"{one:+.3f}" for one in self.by_seed)
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}] n={self.n}, by seed {seeds}"


@dataclass(frozen=True, kw_only=True)
class Shares:
    """One arm's texts until a success, of the texts that another arm needed for it, by seed.

    Infinite where it never gets there; data has None for it, since JSON knows no infinity.
    """

    by_seed: Sequence[float]

    @property
    def words(self) -> str:
        return "share of the texts per seed: " + ", ".join(f"{one:.2f}" for one in self.by_seed)


@dataclass(frozen=True, kw_only=True)
class Change:
    """A mean over all chains before and after training."""

    start: float
    end: float

    @property
    def words(self) -> str:
        return f"{self.start:.3f} -> {self.end:.3f}"


@dataclass(frozen=True)
class Gate:
    """Whether an order holds, and what decides it."""

    holds: bool
    figures: Difference | Shares | Change

    def as_data(self) -> dict[str, Any]:
        """As results keep it."""
        data = asdict(self.figures)
        if isinstance(self.figures, Shares):
            data["by_seed"] = [one if math.isfinite(one) else None for one in self.figures.by_seed]
        return {"holds": self.holds, **data, "figures": self.figures.words}
