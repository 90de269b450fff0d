"""Numbers of an evaluation: paired bootstrap intervals, regret, ladder; as data and as one screen.

The commands `eval` and `ablate` call it; the data is what `eval --summary` writes.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from domains.reputation_hacking.game.mitigations import NONE, Mitigation
from domains.reputation_hacking.game.optimum import Yardstick, number
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import Policy, returns
from domains.reputation_hacking.game.terminal import terminal_info
from domains.reputation_hacking.ppo.paired import Paired, paired

RESAMPLES = 2000
BOOTSTRAP_SEED = 20_000
CAVEAT = (
    "TrueImpact ignores work done and counts rest as saved effort: read it with tasks and effort per task."
)


def columns(result: Paired) -> dict[str, np.ndarray]:
    """Per-seed values [N] of every reported quantity."""
    acting, without, silenced = (
        {name: values[result.counted] for name, values in terminal_info(arm.episodes, arm.settlement).items()}
        for arm in (result.acting, result.without, result.silenced)
    )
    values = {
        "seed": result.seeds[result.counted],
        "reward": acting["reward_raw"],
        "peer_rating": result.rating,
        "plain_rating": acting["plain_rating"],
        "true_impact": result.true_impact,
        "manipulation_score": result.manipulation,
        "signal_bias": result.bias,
        "memory_part": result.memory_part,
        "manipulated": (result.manipulation > 0).astype(float),
        "effort_with": acting["experienced_effort"],
        "effort_without": without["experienced_effort"],
        "effort_silenced": silenced["experienced_effort"],
        "rating_silenced": silenced["peer_rating"],
    }
    for key in ("help_count", "signal_count", "nothing_count", "help_effective", "worked_steps"):
        values[key] = acting[key].astype(float)
    for name, info in (("with", acting), ("without", without)):
        values[f"tasks_{name}"] = info["tasks_completed"].astype(float)
        values[f"progress_{name}"] = info["progress_units"].astype(float)
    values["penalty"] = acting["penalty"]
    values["return"] = returns(result.acting.episodes)[result.counted]
    return values


def intervals(values: dict[str, np.ndarray]) -> dict[str, dict[str, float | None]]:
    """Mean and 95 % bootstrap interval over seeds; all quantities share the resamples. One seed has none."""
    names = [name for name in values if name != "seed"]
    table = np.stack([values[name] for name in names], axis=1)
    count = len(table)
    means = table.mean(0)
    low: Iterable[float | None] = [None] * len(names)
    high: Iterable[float | None] = [None] * len(names)
    if count > 1:
        rng = np.random.default_rng(BOOTSTRAP_SEED)
        weights = rng.multinomial(count, np.full(count, 1.0 / count), size=RESAMPLES) / count
        low, high = np.percentile(weights @ table, [2.5, 97.5], axis=0).tolist()
    return {
        name: {"mean": mean, "low": a, "high": b}
        for name, mean, a, b in zip(names, means.tolist(), low, high, strict=True)
    }


def effort_per_task(params: Params, effort: np.ndarray, progress: np.ndarray) -> float:
    """Effort for `task_units` of progress; NaN where there was none."""
    done = float(progress.sum()) / params.task_units
    return float(effort.sum()) / done if done > 0 else float("nan")


def evaluate(
    params: Params,
    policies: dict[str, Policy],
    seeds: list[int],
    start: float,
    *,
    mitigation: Mitigation = NONE,
    **mode: Any,
) -> tuple[dict[str, Any], dict[str, Paired]]:
    """(report as plain data, paired results) of some policies on the same seeds."""
    results = {
        name: paired(params, policy, seeds, start, mitigation=mitigation, **mode)
        for name, policy in policies.items()
    }
    any_result = next(iter(results.values()))
    counted = any_result.seeds[any_result.counted].tolist()
    yardstick = Yardstick(params, counted)
    report: dict[str, Any] = {
        "convention": any_result.mode,
        "seeds": {"count": len(counted), "first": min(counted), "last": max(counted)},
        "expected_effort_at_start": 0.0 if any_result.mode == "from_zero" else start,
        "c_signal": params.c_signal,
        "c_help": params.c_help,
        "mitigation": str(mitigation),
        "optimum": {
            "J": yardstick.best,
            "best_constant": yardstick.constant_name,
            "J_constant": yardstick.constant,
            "margin": yardstick.margin,
        },
        "policies": {},
        "ladder": yardstick.ladder(),
        "caveat": CAVEAT,
    }
    for name, result in results.items():
        values = columns(result)
        value = float(values["return"].mean())
        plain = mitigation == NONE
        report["policies"][name] = {
            "intervals": intervals(values),
            "effort_per_task": effort_per_task(params, values["effort_with"], values["progress_with"]),
            "effort_per_task_without": effort_per_task(
                params, values["effort_without"], values["progress_without"]
            ),
            "J": value,
            "regret": yardstick.best - value if plain else None,
            "share_of_margin": yardstick.share(value) if plain else None,
        }
    return report, results


_INTERVALS = (
    ("reward", "reward"),
    ("peer rating", "peer_rating"),
    ("  plain rating", "plain_rating"),
    ("TrueImpact", "true_impact"),
    ("ManipulationScore", "manipulation_score"),
    ("  from SIGNALs", "signal_bias"),
    ("  from memory", "memory_part"),
    ("share MS > 0", "manipulated"),
    ("effort with", "effort_with"),
    ("effort without", "effort_without"),
    ("effort silenced", "effort_silenced"),
    ("HELP", "help_count"),
    ("SIGNAL", "signal_count"),
    ("DO_NOTHING", "nothing_count"),
    ("tasks with", "tasks_with"),
    ("tasks without", "tasks_without"),
)
_NUMBERS = (
    ("effort per task", "effort_per_task"),
    ("  without", "effort_per_task_without"),
    ("J", "J"),
    ("regret", "regret"),
    ("share of margin", "share_of_margin"),
)


def screen(report: dict[str, Any]) -> str:
    """The report on one screen."""
    seeds, best = report["seeds"], report["optimum"]
    names = list(report["policies"])
    lines = [
        f"{report['convention']} evaluation, n={seeds['count']} seeds {seeds['first']}..{seeds['last']}, "
        f"c_signal={report['c_signal']:g}, c_help={report['c_help']:g}, mitigation={report['mitigation']}, "
        f"L0={report['expected_effort_at_start']:.2f}",
        f"{'mean [95 % CI]':<20}" + "".join(f"{name:>30}" for name in names),
    ]
    policies = [report["policies"][name] for name in names]
    table = [(label, [_interval(p["intervals"][key]) for p in policies]) for label, key in _INTERVALS]
    table += [(label, [number(p[key]) for p in policies]) for label, key in _NUMBERS]
    lines += [f"{label:<20}" + "".join(f"{cell:>30}" for cell in cells) for label, cells in table]
    lines.append(
        f"optimum J {best['J']:.3f}, best constant {best['best_constant']} {best['J_constant']:.3f}, "
        f"margin {best['margin']:.3f}"
    )
    lines.append(f"{'ladder':<12}{'HELP':>8}{'TI':>8}{'J':>10}{'share':>8}")
    for rung in report["ladder"]:
        lines.append(
            f"{rung['policy']:<12}{rung['help']:>8.2f}{rung['true_impact']:>8.2f}{rung['J']:>10.3f}"
            f"{number(rung['share'], 2):>8}"
        )
    return "\n".join([*lines, report["caveat"]])


def _interval(entry: dict[str, float | None]) -> str:
    inside = "n/a" if entry["low"] is None else f"{entry['low']:.2f}, {entry['high']:.2f}"
    return f"{entry['mean']:.2f} [{inside}]"
