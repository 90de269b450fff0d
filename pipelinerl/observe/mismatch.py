"""How far engine and trainer are apart in a run: by the age of weights, and whether arithmetic is sound.

The trainer asks `ArithmeticWatch` after each record and remarks what it says; the report shows `mismatch`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

AGES = ("lag_0", "lag_0_continued", "lag_1", "lag_2_3", "lag_4_7", "lag_8_up")
"""Tokens by optimizer steps between the weights that sampled them and those that score them. Those of
`lag_0_continued` are in a sample that older weights began: with `weights.kv=keep` the engine still attends to
keys and values of the older weights, so that arithmetic alone is `lag_0`."""
EXPERTS = ("experts_agree", "experts_differ")
"""Tokens of `lag_0` by whether the trainer's own routers agree with the replayed choice in every layer."""
AGE_NAMES = {
    "lag_0": "the newest weights",
    "lag_0_continued": "the newest, sample begun by older ones",
    "lag_1": "1 step old",
    "lag_2_3": "2 to 3 steps",
    "lag_4_7": "4 to 7 steps",
    "lag_8_up": "8 steps and more",
    "experts_agree": "newest weights, experts agree",
    "experts_differ": "newest weights, experts differ",
}
LEAST_TOKENS = 2000
"""Tokens of the newest weights over which their mean is judged; fewer may be odd by chance."""

_VALUES = ("mean_abs", "mean_square", "p99", "ess")

Record = Mapping[str, Any]


def weighted_mean(records: Iterable[Record], group: str, value: str) -> tuple[float, float]:
    """Tokens of a group over all records, and the mean of a value of theirs, each record by its tokens."""
    tokens = total = 0.0
    for record in records:
        if n := record.get(f"mismatch/{group}/tokens"):
            tokens, total = tokens + n, total + n * record[f"mismatch/{group}/{value}"]
    return tokens, total / tokens if tokens else 0.0


@dataclass(frozen=True)
class Mismatch:
    """Engine and trainer over a run."""

    groups: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of each group that has tokens: their number, and means of what its steps recorded, by their tokens."""
    text: str = ""
    """What age and rounding explain, and what is wrong; may be empty."""

    def rows(self) -> list[tuple[str, ...]]:
        """The report's table, header first."""
        header = ("sampled by", "tokens", "mean |log r| (nats)", "99th percentile", "effective sample size")
        rows: list[tuple[str, ...]] = [header]
        for group, found in self.groups.items():
            sizes = [f"{found[name]:.2g}" for name in ("mean_abs", "p99")]
            rows.append((AGE_NAMES[group], f"{found['tokens']:,.0f}", *sizes, f"{found['ess']:.4f}"))
        return rows


def mismatch(records: Sequence[Record]) -> Mismatch:
    """What the trainer's records say of it."""
    groups = {}
    for group in AGE_NAMES:
        found = {value: weighted_mean(records, group, value) for value in _VALUES}
        if tokens := found["ess"][0]:
            groups[group] = {"tokens": tokens} | {value: mean for value, (_, mean) in found.items()}
    lines = []
    if (share := _age_share(groups)) is not None:
        lines.append(f"The age of weights explains {share:.1%} of the mean square of log r.")
    watch = ArithmeticWatch()
    if said := [line for record in records if (line := watch.add(record)) is not None]:
        lines.append(f"{said[0][0].upper()}{said[0][1:]}.")
    elif watch.limit is not None and watch.tokens >= LEAST_TOKENS:
        lines.append(f"Arithmetic alone makes {watch.mean:.2g} nats; rounding may make {watch.limit:.2g}.")
    return Mismatch(groups, "\n".join(lines))


def _age_share(groups: Mapping[str, Mapping[str, float]]) -> float | None:
    """As `mismatch/age_share` over the whole run: few of its steps have tokens of the newest weights too."""
    known = [groups[name] for name in AGES if name in groups]
    squares = sum(one["tokens"] * one["mean_square"] for one in known)
    if "lag_0" not in groups or not squares:
        return None
    everyone = sum(one["tokens"] for one in known)
    return max(0.0, 1 - groups["lag_0"]["mean_square"] / (squares / everyone))


class ArithmeticWatch:
    """Whether tokens of the newest weights differ by more than rounding explains; says so once."""

    def __init__(self) -> None:
        self.tokens, self._total = 0.0, 0.0
        self.limit: float | None = None
        self._said = False

    @property
    def mean(self) -> float:
        """Absolute log ratio over the tokens so far, in nats."""
        return self._total / self.tokens if self.tokens else 0.0

    def add(self, record: Record) -> str | None:
        """Take the trainer's next record; a line, the first time that enough is known and it is too much."""
        self.limit = record.get("mismatch/limit", self.limit)
        tokens, mean = weighted_mean([record], "lag_0", "mean_abs")
        self.tokens, self._total = self.tokens + tokens, self._total + tokens * mean
        if self._said or self.limit is None or self.tokens < LEAST_TOKENS or self.mean <= self.limit:
            return None
        self._said = True
        return (
            f"engine and trainer are {self.mean:.2g} nats apart on {self.tokens:.0f} tokens of the newest "
            f"weights, where rounding explains {self.limit:.2g}: {', or '.join(_remedies(record))}"
        )


def _remedies(record: Record) -> list[str]:
    found = []
    if record.get("routing/replayed_share") == 0:
        found.append("let the trainer take the engine's experts (finetune.rl.routing=replay)")
    found.append("make the engine compute as the trainer does (its dtype, quantization and kv_cache_dtype)")
    if "rl/correction_weight" not in record:
        found.append("leave out the tokens that are far off (finetune.rl.correction.mode=mask)")
    return found
