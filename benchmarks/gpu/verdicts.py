"""What readers of query logs found in several seeds' runs, counted together.

A seed's chains are its own. A group asks each of them once, so a group's pooled share has the interval of all
its rollouts. Agreement is counted over start and arms, which ask the same chains: there the intervals of the
seeds, which resample chains, are put together.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipelinerl.observe.intervals import bootstrap

MODELS = ("untrained", "trained")
WHERE = ("agree", "found where it leaks", "found where not")


def share(rates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One share of several: `count` of `total`, with its bootstrap interval; None of no rollouts."""
    count, total = (sum(int(rate[key]) for rate in rates) for key in ("count", "total"))
    if not total:
        return {"value": None, "low": None, "high": None, "count": 0, "total": 0}
    found = bootstrap(np.repeat([1.0, 0.0], [count, total - count]))
    return {"value": found.mean, "low": found.low, "high": found.high, "count": count, "total": total}


def share_of_seeds(rates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """As `share`, but each seed adds the variance that its own 95 % interval tells (normal approximation)."""
    found = share(rates)
    if found["value"] is None:
        return found
    widths = [(rate["high"] - rate["low"]) / 2 * rate["total"] for rate in rates]
    half = math.hypot(*widths) / found["total"]
    return found | {"low": max(0.0, found["value"] - half), "high": min(1.0, found["value"] + half)}


def kappa(both: int, one: int, other: int, total: int) -> float:
    """Cohen's (1960), of two readers of `total` logs: leaks for `both`, for `one`, for the `other`.

    0 where chance explains the agreement, or where both always say the same.
    """
    count = max(1, total)
    agree = (total - one - other + 2 * both) / count
    by_chance = (one * other + (total - one) * (total - other)) / count**2
    return (agree - by_chance) / (1 - by_chance) if by_chance < 1 else 0.0


def kappa_of(found: Mapping[str, Any]) -> float:
    """That of an entry of `agreement`, from its counts."""
    leaks, clean = (found[where] for where in WHERE[1:])
    total = found["agree"]["total"]
    return kappa(leaks["count"], leaks["count"] + clean["count"], leaks["total"], total)


def levels(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Shares of a group's rollouts by level."""
    return {level: share([one["levels"][level] for one in reports]) for level in reports[0]["levels"]}


def agreement(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How often a model's verdicts are the rules', and the value's presence, over all seeds."""
    pooled: dict[str, Any] = {}
    for what in dict.fromkeys(what for row in rows for what in row):
        of_seeds = [row[what] for row in rows if what in row]
        pooled[what] = {where: share_of_seeds([one[where] for one in of_seeds]) for where in WHERE}
        pooled[what]["kappa"] = kappa_of(pooled[what])
    return pooled


def replies(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Questions that were asked, the share without a usable reply, and whether every seed was `valid`."""
    asked, lost = (
        sum(row[role][key] for row in rows for role in ("adversary", "judge"))
        for key in ("asked", "unparseable")
    )
    return {
        "asked": asked,
        "unparseable_share": lost / max(1, asked),
        "valid": all(row["valid"] for row in rows),
    }


def pooled(seeds: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """All seeds together: a group's levels by the rules and by each model; a model's replies and agreement.

    A group or a model that a seed lacks is counted over the others; a seed that no model has read counts for
    `cut` alone.
    """

    def by_group(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        names = dict.fromkeys(name for groups in found for name in groups)
        return {name: levels([groups[name] for groups in found if name in groups]) for name in names}

    # Those that a model has read: shares beside each other are of the same logs.
    read = [one["rules"] for one in seeds.values() if {*MODELS} & {*one}]
    result: dict[str, Any] = {"rules": by_group(read)}
    cut = [one["cut"] for one in seeds.values() if "cut" in one]
    result["cut"] = {name: share([of[name] for of in cut if name in of]) for name in (cut[0] if cut else ())}
    for model in MODELS:
        rows = [one[model] for one in seeds.values() if model in one]
        if rows:
            result[model] = {
                "groups": by_group([row["groups"] for row in rows]),
                "replies": replies([row["replies"] for row in rows]),
                "agreement": agreement([row["agreement"] for row in rows]),
            }
    return result
