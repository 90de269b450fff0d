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
    """Write the figure, a line per run: percent right, sampled and where it was kept greedy, and the game.

    x is policy completions (expert answers for more SFT). Where arms differ much in length it is linear up to
    the first evaluation and logarithmic from there, which the axis says.
    """
    ways = {"sampled": "curve"} | ({"greedy": "greedy"} if any(run.greedy for run in results) else {})
    figure, panels = plt.subplots(1, len(ways) + 1, figsize=(5 * (len(ways) + 1), 3.8))
    rates = [rate for run in results for curve in ways.values() for rate in getattr(run, curve).values()]
    highest = 1.06 * max(rates, default=1.0)

    def line(axes: plt.Axes, curve: Mapping[str, float], index: int, window: int, **style: object) -> None:
        x, y = np.array([float(at) for at in curve]), np.array(list(curve.values()), np.float64)
        look = {"color": COLOURS[index], "linestyle": DASHES[index], "linewidth": 1.2}
        axes.plot(x, smooth(y, window), **look, **style)

    for axes, (way, curve) in zip(panels, ways.items()):
        for index, (name, arm) in enumerate(arms.items()):
            for number, run in enumerate(run for run in results if run.arm == name):
                label = None if number else arm.title
                line(axes, getattr(run, curve), index, 1, label=label, marker=MARKERS[index], markersize=4)
        axes.set(title=f"held-out questions, {way}", ylabel="percent right", ylim=(0, highest))
        axes.set_xlabel(_completions(axes, [[float(at) for at in run.curve] for run in results]))
    for number, run in enumerate(run for run in results if run.arm == "raro"):
        for index, name in enumerate(GAME):
            line(panels[-1], run.game.get(name, {}), index, SMOOTHED, label=None if number else name)
    panels[-1].set(title="RARO: the game on fresh pairs", ylabel="share", ylim=(0, 1))
    panels[-1].set_xlabel("policy completions")
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (panels[0], panels[-1]):  # below the axes, where no line is
        if axes.get_legend_handles_labels()[1]:
            place = {"loc": "upper left", "bbox_to_anchor": (-0.1, -0.24 if axes is panels[0] else -0.16)}
            axes.legend(fontsize=9, frameon=False, ncols=3, **place)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)


def _completions(axes: plt.Axes, curves: Sequence[Sequence[float]]) -> str:
    """What the x axis of the curves shows; its scale is set where their lengths ask for another one."""
    lengths = [at for at in curves if len(at) > 1]
    label = "policy completions; of more SFT, expert answers"
    if lengths and max(at[-1] for at in lengths) > UNEVEN * min(at[-1] for at in lengths):
        first, last = min(at[1] for at in lengths), max(at[-1] for at in lengths)
        axes.set_xscale("symlog", linthresh=first)
        axes.set_xlim(-0.1 * first, 1.2 * last)
        label += f"\n(linear up to {first:,.0f}, then logarithmic)"
    return label
