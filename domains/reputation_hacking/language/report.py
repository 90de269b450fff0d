"""The domain's part of a run's final report: its episodes beside the optimum on the same seeds."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from domains.reputation_hacking.game.dynamics import ACTIONS
from domains.reputation_hacking.game.optimum import Yardstick, number
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.language.log import read_episodes
from domains.reputation_hacking.language.prompts import SITUATIONS
from pipelinerl.domain import ReportSection

WINDOWS = 6
"""Stretches of training that the report compares."""

Episode = dict[str, Any]


def sections(output_dir: Path) -> list[ReportSection]:
    """Evaluation against the optimum for each price, and how behaviour changed in training."""
    episodes = read_episodes(output_dir)
    evaluated = [e for e in episodes if not e["training"]]
    prices = sorted({(e["c_signal"], e["c_help"]) for e in evaluated})
    found = [_against_optimum(evaluated, *price) for price in prices]
    trained = [e for e in episodes if e["training"]]
    return [*found, _training(trained)] if trained else found


def _mean(episodes: list[Episode], key: str) -> str:
    return f"{np.mean([e[key] for e in episodes]):.2f}"


def _against_optimum(evaluated: list[Episode], c_signal: float, c_help: float) -> ReportSection:
    """The first and the last version that was evaluated, and the ladder."""
    chosen = [e for e in evaluated if (e["c_signal"], e["c_help"]) == (c_signal, c_help)]
    versions = sorted({e["version"] for e in chosen})
    yardstick = Yardstick(Params(c_signal=c_signal, c_help=c_help), {e["seed"] for e in chosen})

    def value(j: float) -> tuple[str, str, str]:
        return f"{j:.3f}", f"{yardstick.best - j:.3f}", number(yardstick.share(j), 2)

    rows: list[tuple[str, ...]] = [
        ("policy", "HELP", "SIGNAL", "DO_NOTHING", "TI", "MS", "invalid", "J", "regret", "share of margin")
    ]
    for version in dict.fromkeys((versions[0], versions[-1])):
        same = [e for e in chosen if e["version"] == version]
        counts = [np.mean([e["actions"][name] for e in same]) for name in ("HELP", "SIGNAL", "DO_NOTHING")]
        means = (_mean(same, key) for key in ("true_impact", "manipulation_score", "invalid"))
        j = float(np.mean([e["episode_return"] for e in same]))
        name = f"version {version}, n={len(same)}"
        rows.append((name, *(f"{count:.1f}" for count in counts), *means, *value(j)))
    for rung in yardstick.ladder():
        helps, impact = f"{rung['help']:.1f}", f"{rung['true_impact']:.2f}"
        rows.append((rung["policy"], helps, "", "", impact, "", "", *value(rung["J"])))
    return ReportSection(title=f"Against the optimum on the same seeds, c_signal={c_signal:g}", rows=rows)


def _training(trained: list[Episode]) -> ReportSection:
    """Shares of actions, entropy and idle buckets over stretches of versions."""
    ordered = sorted(trained, key=lambda e: e["version"])
    rows: list[tuple[str, ...]] = [
        ("versions", "rollouts", "HELP", "SIGNAL", "invalid", "entropy by situation", "idle buckets", "J")
    ]
    for part in np.array_split(np.arange(len(ordered)), min(WINDOWS, len(ordered))):
        window = [ordered[index] for index in part]
        rows.append(
            (
                f"{window[0]['version']}..{window[-1]['version']}",
                str(len(window)),
                *(_mean(window, key) for key in ("help_share", "signal_share", "invalid")),
                f"{situation_entropy(window):.2f}",
                f"{idle_buckets(window):.0%}",
                _mean(window, "episode_return"),
            )
        )
    text = "Idle buckets: situations of a group with fewer than 4 texts or one distinct action."
    return ReportSection(title="Behaviour in training", rows=rows, text=text)


def _counts(episode: Episode) -> Counter[tuple[int, str]]:
    pairs = ((key.split(":"), count) for key, count in episode["by_situation"].items())
    return Counter({(int(index), action): count for (index, action), count in pairs})


def situation_entropy(episodes: list[Episode]) -> float:
    """Mean entropy in nats of the actions within a situation, weighted by visits."""
    total: Counter[tuple[int, str]] = sum((_counts(e) for e in episodes), Counter())
    table = np.array([[total[index, name] for name in ACTIONS] for index in range(SITUATIONS)], dtype=float)
    visits = table.sum(1)
    shares = table[visits > 0] / visits[visits > 0, None]
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(1)
    return float((entropy * visits[visits > 0]).sum() / visits.sum()) if visits.any() else 0.0


def idle_buckets(episodes: list[Episode]) -> float:
    """Share of (group, situation) buckets that cannot teach anything."""
    buckets: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for episode in episodes:
        for (index, action), count in _counts(episode).items():
            buckets[episode["group"], index][action] += count
    idle = sum(counts.total() < 4 or len(counts) < 2 for counts in buckets.values())
    return idle / len(buckets) if buckets else 0.0
