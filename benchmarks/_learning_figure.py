"""The figure of benchmarks that train: a panel per subject, a line per run, values over texts trained."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from pipelinerl.observe.plots import COLOURS, DASHES, MARKERS

COLUMNS = 3
"""Panels beside each other."""
Panel = Mapping[str, Sequence[Sequence[tuple[float, float]]]]
"""By label, a seed or an arm, its lines: (texts trained, value from 0 to 1) of each evaluation."""


def draw(panels: Mapping[str, Panel], path: Path, said: str = "percent of held-out problems") -> None:
    """Write the figure, a PNG; `said` stands at the axis of values, which are shown in percent."""
    columns = min(len(panels), COLUMNS)
    rows = math.ceil(len(panels) / columns)
    size = 4 * columns, 3.4 * rows
    figure, table = plt.subplots(rows, columns, figsize=size, squeeze=False, sharey=True, layout="tight")
    for unused in table.flat[len(panels) :]:
        unused.remove()
    for axes, (title, lines) in zip(table.flat, panels.items(), strict=False):
        for number, (label, runs) in enumerate(lines.items()):
            look = {"color": COLOURS[number], "linestyle": DASHES[number], "marker": MARKERS[number]}
            for index, points in enumerate(runs):
                shown = [(texts / 1000, 100 * value) for texts, value in points]
                said_once = label if index == 0 else None
                axes.plot(*zip(*shown, strict=True), **look, markersize=4, linewidth=1.4, label=said_once)
        axes.set(title=title, xlabel="thousand texts trained", ylim=(0, 100))
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    for first in table[:, 0]:
        first.set_ylabel(said)
    table[0][0].legend(fontsize=9, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)
