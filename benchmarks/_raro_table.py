"""The table of the RARO experiment: means over seeds, paired differences, gain ratio. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks._seeds import ratio_of_means, t_interval

LEAST_GAIN = 5.0
"""Points that verifier RL must gain for a ratio to it to mean something."""
WAYS = ("sampled", "greedy")
GAME_FIGURES = ("critic accuracy", "policy reward", "ties")
"""What the guide's sanity checks look at."""
ENTROPY_STEPS = (5, 20)
"""First and last optimizer steps whose entropy is kept, a mean over all texts of a step, the critic's too."""
COSTS = ("trained_tokens", "completions", "seconds")


@dataclass(frozen=True)
class Arm:
    """One way to train on."""

    title: str
    domain: str
    overrides: tuple[str, ...] = ()
    best_validation: bool = False
    """Choose the version by validation accuracy instead of taking the last."""
    critic_groups: int = 0
    """Critic groups for each judged answer: its own pair's, and an earlier one's."""


@dataclass(frozen=True)
class RunResult:
    """Percent right on held-out questions by way of sampling, and costs.

    `curve` (percent right, sampled), `greedy` and the curves of the `game` are by policy completions that
    were trained on, for more SFT by expert answers. `completions` are all that were sampled; for more SFT,
    which samples none, the expert answers that were trained on.
    """

    arm: str
    seed: int
    before: dict[str, float]
    after: dict[str, float]
    curve: dict[str, float]
    questions: int
    trained_tokens: float
    completions: float
    seconds: float
    game: dict[str, dict[str, float]] = field(default_factory=dict)
    greedy: dict[str, float] = field(default_factory=dict)
    chosen: dict[str, int] = field(default_factory=dict)
    """The version that `after` is of, by policy completions."""
    first_labels: float | None = None
    """Critic accuracy over the first committed labels on fresh pairs."""
    entropy: list[float] = field(default_factory=list)
    """Nats of a token, means over the first and the last of the optimizer steps (ENTROPY_STEPS of them)."""
    earned: dict[str, list[float | None]] = field(default_factory=dict)
    """By tenths of training, the share of right answers and what right and wrong ones earned."""


def gain_ratio(
    arm: Sequence[float], rlvr: Sequence[float], warm: Sequence[float]
) -> tuple[float, float | None, float | None] | None:
    """(arm - warm) / (rlvr - warm) of means over seeds, with Fieller's interval.

    None if verifier RL gains less than LEAST_GAIN points.
    """
    a, v, w = (np.asarray(values, np.float64) for values in (arm, rlvr, warm))
    if v.mean() - w.mean() < LEAST_GAIN:
        return None
    return ratio_of_means(list(a - w), list(v - w))


def _row(values: Sequence[float]) -> dict[str, Any]:
    mean, half = t_interval(values)
    return {"mean": mean, "half_width": half, "seeds": len(values)}


def table(results: Sequence[RunResult], arms: Mapping[str, Arm]) -> dict[str, Any]:
    """Per way of sampling: each arm's interval, RARO minus SFT by seed, and the gain ratio; costs by arm."""
    runs = {name: {r.seed: r for r in results if r.arm == name} for name in arms}
    found: dict[str, Any] = {}
    for way in WAYS:
        after = {name: {s: r.after[way] for s, r in by_seed.items()} for name, by_seed in runs.items()}
        warm = {r.seed: r.before[way] for r in results}
        raro, sft, rlvr = (after.get(name, {}) for name in ("raro", "sft", "rlvr"))
        compared = {**after, "warm": warm, "raro - sft": {s: raro[s] - sft[s] for s in raro if s in sft}}
        found[way] = {name: _row(list(values.values())) for name, values in compared.items() if values}
        if both := sorted(raro.keys() & rlvr.keys()):
            ratio = gain_ratio([raro[s] for s in both], [rlvr[s] for s in both], [warm[s] for s in both])
            found[way]["gain ratio"] = (
                "not applicable" if ratio is None else dict(zip(("ratio", "low", "high"), ratio))
            )
    found["game"] = {
        name: played(by_seed) for name, by_seed in runs.items() if arms[name].critic_groups and by_seed
    }
    found["costs"] = {
        name: {cost: float(np.mean([getattr(r, cost) for r in by_seed.values()])) for cost in COSTS}
        for name, by_seed in runs.items()
        if by_seed
    }
    return found


def played(by_seed: Mapping[int, RunResult]) -> dict[str, Any]:
    """The guide's three checks as they came out, by seed: means of the first and the last tenth of training.

    `change` is between the last two tenths, `first labels` the critic's accuracy over its first committed
    ones. None where a run was too short to have them, or its records are lost.
    """
    checks: dict[str, Any] = {"first labels": [by_seed[seed].first_labels for seed in sorted(by_seed)]}
    for figure in GAME_FIGURES:
        means = [tenths(list(by_seed[seed].game[figure].values())) for seed in sorted(by_seed)]
        checks[figure] = {
            "first": [one[0] if one else None for one in means],
            "last": [one[-1] if one else None for one in means],
            "change": [abs(one[-1] - one[-2]) if len(one) > 1 else None for one in means],
        }
    return checks


def tenths(values: Sequence[float]) -> list[float]:
    """Means over the tenths of a curve, fewer where it is shorter."""
    parts = np.array_split(np.asarray(values, np.float64), min(10, len(values)) or 1)
    return [float(part.mean()) for part in parts if len(part)]


def _said(ratio: str | Mapping[str, float | None]) -> str:
    if isinstance(ratio, str):
        return ratio
    low, high = ("-" if (end := ratio[key]) is None else f"{end:.2f}" for key in ("low", "high"))
    return f"{ratio['ratio']:.2f} [{low}, {high}]"


def lines(found: Mapping[str, Any], arms: Mapping[str, Arm]) -> list[str]:
    """The table as text."""
    out = []
    for way in WAYS:
        rows = found[way]
        out += ["", f"held-out accuracy, {way}: mean over seeds +- half of the 95 % t interval, in percent"]
        for name in ("warm", *arms, "raro - sft"):
            if name in rows:
                title = arms[name].title if name in arms else name
                half = "-" if (width := rows[name]["half_width"]) is None else f"{width:.1f}"
                out.append(f"  {title:<22}{rows[name]['mean']:7.1f} +- {half:<6} n={rows[name]['seeds']}")
        if "gain ratio" in rows:
            ratio = rows["gain ratio"]
            out.append(f"  gain ratio RARO / verifier RL: {_said(ratio)}")
    for name, checks in found["game"].items():
        out += ["", f"{arms[name].title}: first and last tenth of training, by seed"]
        for figure in GAME_FIGURES:
            ends = zip(checks[figure]["first"], checks[figure]["last"])
            shown = ", ".join("-" if first is None else f"{first:.2f} -> {last:.2f}" for first, last in ends)
            out.append(f"  {figure:<22}{shown}")
    out += ["", "costs per run: trained tokens, policy completions (expert answers), seconds"]
    for name, cost in found["costs"].items():
        tokens, completions, seconds = (cost[one] for one in COSTS)
        out.append(f"  {arms[name].title:<22}{tokens:>12,.0f}{completions:>9,.0f}{seconds:>8,.0f}")
    return out
