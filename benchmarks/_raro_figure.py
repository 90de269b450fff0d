"""The figure of the RARO experiment: held-out accuracy by arm, and the game between critic and policy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks._raro_table import Arm, RunResult
from pipelinerl.observe.plots import COLOURS, DASHES, MARKERS, smooth

GAME = {
    "critic accuracy": "raro/fresh/critic_accuracy",
    "ties": "raro/fresh/tie_rate",
    "policy reward": "raro/policy_reward",
}
"""Curves of the game, by the metric they are read from."""
SMOOTHED = 9
"""Records that a point of the game's curves is the mean of."""
UNEVEN = 3
"""Where an arm goes on so many times longer than another, completions are drawn on a logarithmic axis."""


def draw(results: Sequence[RunResult], arms: Mapping[str, Arm], path: Path) -> None:
    """Write the figure, a line per run; x is policy completions (expert answers for more SFT).

    The axis is linear up to the first evaluation, and where arms differ in length logarithmic from there.
    """
    figure, (accuracy, game) = plt.subplots(1, 2, figsize=(10, 3.8))

    def line(axes: plt.Axes, curve: Mapping[str, float], index: int, window: int, **style: object) -> None:
        x, y = np.array([float(at) for at in curve]), np.array(list(curve.values()), np.float64)
        look = {"color": COLOURS[index], "linestyle": DASHES[index], "linewidth": 1.2}
        axes.plot(x, smooth(y, window), **look, **style)

    for index, (name, arm) in enumerate(arms.items()):
        for number, run in enumerate(run for run in results if run.arm == name):
            label = None if number else arm.title
            line(accuracy, run.curve, index, 1, label=label, marker=MARKERS[index], markersize=4)
    for number, run in enumerate(run for run in results if run.arm == "raro"):
        for index, name in enumerate(GAME):
            line(game, run.game.get(name, {}), index, SMOOTHED, label=None if number else name)
    accuracy.set(title="held-out questions, sampled", ylabel="percent right", xlabel="policy completions")
    accuracy.set_ylim(bottom=0)
    lengths = [[float(at) for at in run.curve] for run in results if len(run.curve) > 1]
    if lengths and max(at[-1] for at in lengths) > UNEVEN * min(at[-1] for at in lengths):
        accuracy.set_xscale("symlog", linthresh=min(at[1] for at in lengths))
        accuracy.set_xlim(-0.1 * min(at[1] for at in lengths), 1.2 * max(at[-1] for at in lengths))
    game.set(title="RARO: the game on fresh pairs", ylabel="share", xlabel="policy completions", ylim=(0, 1))
    for axes in (accuracy, game):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize=9, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)
