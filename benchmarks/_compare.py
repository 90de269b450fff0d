"""Arms of an experiment beside each other, as `compare` of its specification asks; `benchmarks.experiment`.

Each comparison is an object in the results and one or more figures, for which a specification has goals.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from benchmarks._figures import Figure
from benchmarks._intervals import paired, ratio_of_means, t_interval
from pipelinerl.observe.intervals import known

Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""By arm the rows of `_by_metric`."""
LEAST_GAIN = 0.05
"""That the other arm must have for a share of its gain to mean something."""


class Comparison(BaseModel):
    """One arm and another, over the seeds that both have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arm: str
    to: str = "start"
    """An arm, or what this one started from."""
    metrics: list[str] = []
    by: Literal["difference", "gain", "left", "texts", "tokens", "speed"] = "difference"
    """`difference` of the last models; `gain` as a share of the other's gain over its own start; what is
    `left` of the start's value; how many times fewer `texts`, or labelled `tokens` of them, until the other's
    last value is reached; trained texts per second (`speed`) as a multiple of the other's."""
    share: float = Field(1.0, gt=0, le=1)
    """Of the other's gain, that is reached with so many times fewer `texts` or `tokens`."""


def compared(rows: Rows, asked: Sequence[Comparison], own_problems: bool) -> dict[str, dict[str, Any]]:
    """What was found, by name; a comparison without a seed that both arms have is left out.

    So is one in a metric that never applied, and one that has nothing to divide by.
    """
    found: dict[str, dict[str, Any]] = {}
    for one in asked:
        by_seed = {row["seed"]: row for row in rows.get(one.arm, [])}
        others = by_seed if one.to == "start" else {row["seed"]: row for row in rows.get(one.to, [])}
        pairs = [(row, others[seed]) for seed, row in by_seed.items() if seed in others]
        if one.by == "speed" and pairs:
            ratios = [row["texts_per_s"] / other["texts_per_s"] for row, other in pairs]
            found[f"{one.arm} / {one.to}"] = {"mean": float(np.mean(ratios)), "by_seed": ratios}
        for metric in one.metrics:
            having = [pair for pair in pairs if all(metric in row["values"] for row in pair)]
            name, value = _compare(one, metric, having, own_problems) if having else ("", None)
            if value is not None:
                found[name] = value
    return found


def figures_of(found: Mapping[str, Mapping[str, Any]]) -> Iterator[Figure]:
    """Value and ends of the interval over problems; the interval over seeds, where it is one of its own."""
    for name, one in found.items():
        yield Figure(name, one["mean"], "")
        for end, key in (("lower", "low"), ("upper", "high")):
            if one.get(key) is not None:
                yield Figure(f"{name}, {end} end", one[key], "")
        if one.get("half_width") is not None:
            mean = float(np.mean(one["by_seed"]))
            yield Figure(f"{name}, over seeds, lower end", mean - one["half_width"], "")
            yield Figure(f"{name}, over seeds, upper end", mean + one["half_width"], "")


def _compare(
    one: Comparison, metric: str, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], own: bool
) -> tuple[str, dict[str, Any] | None]:
    if one.by in ("texts", "tokens"):
        if any(len(row["curve"][metric]) < 3 for pair in pairs for row in pair):
            return "", None  # between start and end alone every value would be reached on a straight line
        times = [
            times_fewer(_curve(row, metric, one.by), _curve(other, metric, one.by), one.share)
            for row, other in pairs
        ]
        of = "" if one.share == 1 else f"{one.share:g} of the gain to "
        name = f"{one.arm}, times fewer {one.by} to {of}{one.to}'s {metric}"
        return name, {"mean": min(times), "by_seed": times}
    starts, ends = ([row["values"][metric][end] for row, _ in pairs] for end in (0, 1))
    if one.by == "left":
        known_both = [
            pair
            for start, end in zip(starts, ends)
            for pair in zip(start, end, strict=True)
            if None not in pair
        ]
        if not any(start for start, _ in known_both):
            return "", None
        ratio = ratio_of_means([end for _, end in known_both], [start for start, _ in known_both])
        return f"{metric} left by {one.arm}", dict(zip(("mean", "low", "high"), ratio, strict=True))
    if one.by == "gain":
        of_arm, of_other = (
            [known(row["values"][metric][1]).mean() - known(row["values"][metric][0]).mean() for row in which]
            for which in zip(*pairs, strict=True)
        )
        name = f"{one.arm}'s gain in {metric}, of {one.to}'s"
        if np.mean(of_other) < LEAST_GAIN:
            return name, None
        return name, dict(zip(("mean", "low", "high"), ratio_of_means(of_arm, of_other), strict=True))
    if one.to != "start":
        starts = [other["values"][metric][1] for _, other in pairs]
    by_seed = [paired([start], [end])[2].mean for start, end in zip(starts, ends, strict=True)]
    found = paired(starts, ends, own)[2]._asdict()
    more = {"by_seed": by_seed, "half_width": t_interval(by_seed)[1]}
    return f"{metric} after, {one.arm} - {one.to}", found | more


def _curve(row: Mapping[str, Any], metric: str, by: str) -> list[tuple[float, float]]:
    """(texts or tokens, value) of each evaluation."""
    curve = row["curve"][metric]
    if by == "texts":
        return [(texts, value) for texts, value in curve]
    return [(tokens, value) for tokens, (_, value) in zip(row["tokens"], curve, strict=True)]


def times_fewer(
    curve: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]], share: float = 1.0
) -> float:
    """The other's texts until its last value over those of this one; 0 where this one never gets there.

    With a `share` below 1 until that share of the other's gain.

    Curves are (texts, value) of each evaluation, between which they are straight.
    """
    (_, first), (_, last) = other[0], other[-1]
    target = last if share == 1 else first + share * (last - first)
    needed, of = (texts_to(one, target) for one in (curve, other))
    if needed is None or not of:  # where training gained nothing there is nothing to be faster at
        return 0.0
    return of / (needed or curve[1][0])


def texts_to(curve: Sequence[tuple[float, float]], target: float) -> float | None:
    """Texts until the value first reaches `target`; None if it never does."""
    at = next((index for index, (_, value) in enumerate(curve) if value >= target), None)
    if at is None:
        return None
    if at == 0:
        return float(curve[0][0])
    (texts, value), (next_texts, next_value) = curve[at - 1], curve[at]
    return texts + (target - value) / (next_value - value) * (next_texts - texts)
