"""The table of the RARO experiment: means over seeds, paired differences, gain ratio. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LEAST_GAIN = 5.0
"""Points that verifier RL must gain for a ratio to it to mean something."""
RESAMPLES = 10_000
# Two-sided 95 % quantiles of Student's t by degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class Arm:
    """One way to train on."""

    title: str
    domain: str
    overrides: tuple[str, ...]
    best_validation: bool = False
    """Choose the version by validation accuracy instead of taking the last."""


@dataclass(frozen=True)
class RunResult:
    """Percent right on held-out questions by way of sampling, and costs.

    `curve` (percent right, sampled) and the curves of the `game` are by policy completions.
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


def t_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and half width of the 95 % t interval; None for one value."""
    array = np.asarray(values, np.float64)
    if len(array) < 2:
        return float(array.mean()), None
    quantile = _T[len(array) - 2] if len(array) - 2 < len(_T) else 1.96
    return float(array.mean()), float(quantile * array.std(ddof=1) / math.sqrt(len(array)))


def gain_ratio(
    arm: Sequence[float], rlvr: Sequence[float], warm: Sequence[float], seed: int = 0
) -> tuple[float, float, float] | None:
    """(arm - warm) / (rlvr - warm) of means with a bootstrap interval over seeds.

    None if verifier RL gains less than LEAST_GAIN points.
    """
    a, v, w = (np.asarray(values, np.float64) for values in (arm, rlvr, warm))
    if v.mean() - w.mean() < LEAST_GAIN:
        return None
    rows = np.random.default_rng(seed).integers(0, len(a), (RESAMPLES, len(a)))
    below = (v - w)[rows].mean(1)
    ratios = (a - w)[rows].mean(1)[below > 0] / below[below > 0]
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float((a - w).mean() / (v - w).mean()), float(low), float(high)


def table(results: Sequence[RunResult], arms: Mapping[str, Arm]) -> dict[str, Any]:
    """Per way of sampling: each arm's interval, RARO minus SFT by seed, and the gain ratio."""
    found: dict[str, Any] = {}
    by_arm = {name: {r.seed: r for r in results if r.arm == name} for name in arms}
    for way in ("sampled", "greedy"):
        rows: dict[str, Any] = {}
        for name, runs in by_arm.items():
            if runs:
                mean, half = t_interval([r.after[way] for r in runs.values()])
                rows[name] = {"mean": mean, "half_width": half, "seeds": len(runs)}
        warm = {r.seed: r.before[way] for r in results}
        if warm:
            mean, half = t_interval(list(warm.values()))
            rows["warm"] = {"mean": mean, "half_width": half, "seeds": len(warm)}
        found[way] = rows | _comparisons(by_arm, warm, way)
    found["costs"] = {
        name: {
            "trained_tokens": float(np.mean([r.trained_tokens for r in runs.values()])),
            "completions": float(np.mean([r.completions for r in runs.values()])),
            "seconds": float(np.mean([r.seconds for r in runs.values()])),
        }
        for name, runs in by_arm.items()
        if runs
    }
    return found


def _comparisons(
    by_arm: Mapping[str, Mapping[int, RunResult]], warm: Mapping[int, float], way: str
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    raro, sft, rlvr = (by_arm.get(name, {}) for name in ("raro", "sft", "rlvr"))
    if both := sorted(set(raro) & set(sft)):
        mean, half = t_interval([raro[s].after[way] - sft[s].after[way] for s in both])
        found["raro - sft"] = {"mean": mean, "half_width": half, "seeds": len(both)}
    if both := sorted(set(raro) & set(rlvr)):
        ratio = gain_ratio(
            [raro[s].after[way] for s in both], [rlvr[s].after[way] for s in both], [warm[s] for s in both]
        )
        found["gain ratio"] = (
            "not applicable" if ratio is None else dict(zip(("ratio", "low", "high"), ratio))
        )
    return found


def lines(found: Mapping[str, Any], arms: Mapping[str, Arm]) -> list[str]:
    """The table as text."""
    out = []
    for way in ("sampled", "greedy"):
        rows = found[way]
        out += ["", f"held-out accuracy, {way}: mean over seeds +- half of the 95 % t interval, in percent"]
        for name in ("warm", *arms, "raro - sft"):
            if name in rows:
                title = arms[name].title if name in arms else name
                row = rows[name]
                half = "-" if row["half_width"] is None else f"{row['half_width']:.1f}"
                out.append(f"  {title:<22}{row['mean']:7.1f} +- {half:<6} n={row['seeds']}")
        if "gain ratio" in rows:
            ratio = rows["gain ratio"]
            said = ratio if isinstance(ratio, str) else "{ratio:.2f} [{low:.2f}, {high:.2f}]".format(**ratio)
            out.append(f"  gain ratio RARO / verifier RL: {said}")
    out += ["", "costs per run: trained tokens, policy completions, seconds"]
    for name, cost in found["costs"].items():
        out.append(
            f"  {arms[name].title:<22}{cost['trained_tokens']:>12,.0f}{cost['completions']:>9,.0f}"
            f"{cost['seconds']:>8,.0f}"
        )
    return out
