"""The figure of the RARO experiment: held-out accuracy by arm, and the game between critic and policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks._raro_table import Arm, RunResult

GAME = {
    "critic accuracy": "raro/fresh/critic_accuracy",
    "ties": "raro/fresh/tie_rate",
    "policy reward": "raro/policy_reward",
}
"""Curves of the game, by the metric they are read from."""
SMOOTHED = 9
"""Records that a point of the game's curves is the mean of."""


def draw(results: Sequence[RunResult], arms: Mapping[str, Arm], path: Path) -> None:
    """Write the figure; x is policy completions (expert answers for more SFT)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (accuracy, game) = plt.subplots(1, 2, figsize=(10, 3.8))
    for index, (name, arm) in enumerate(arms.items()):
        runs = [run for run in results if run.arm == name]
        for run in runs:
            x, y = _points(run.curve)
            label = arm.title if run is runs[0] else None
            accuracy.plot(x, y, "o-", color=f"C{index}", ms=3, lw=1, alpha=0.8, label=label)
    raro = [run for run in results if run.arm == "raro"]
    for index, name in enumerate(GAME):
        for run in raro:
            x, y = _points(run.game.get(name, {}))
            label = name if run is raro[0] else None
            game.plot(x, _smooth(y), color=f"C{index}", lw=1, alpha=0.8, label=label)
    accuracy.set(title="held-out questions, sampled", ylabel="percent right", xlabel="policy completions")
    game.set(title="RARO: the game on fresh pairs", xlabel="policy completions", ylim=(0, 1))
    for axes in (accuracy, game):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)


def _points(curve: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([float(x) for x in curve]), np.array(list(curve.values()), np.float64)


def _smooth(values: np.ndarray) -> np.ndarray:
    """Centred means over at most SMOOTHED neighbours, `[n]` as given."""
    half = SMOOTHED // 2
    return np.array([values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))])
