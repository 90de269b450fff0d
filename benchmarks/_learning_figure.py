"""The figure of benchmarks that train: a panel per subject, a line per seed, values over texts trained."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from pipelinerl.observe.plots import COLOURS, DASHES, MARKERS

COLUMNS = 3
"""Panels beside each other."""
Panel = Mapping[int, Sequence[tuple[float, float]]]
"""By seed: (texts trained, value from 0 to 1) of each evaluation."""


def draw(panels: Mapping[str, Panel], path: Path, said: str = "percent of held-out problems") -> None:
    """Write the figure, a PNG; `said` stands at the axis of values, which are shown in percent."""
    columns = min(len(panels), COLUMNS)
    rows = math.ceil(len(panels) / columns)
    size = 4 * columns, 3.4 * rows
    figure, table = plt.subplots(rows, columns, figsize=size, squeeze=False, sharey=True, layout="tight")
    for unused in table.flat[len(panels) :]:
        unused.remove()
    for axes, (title, lines) in zip(table.flat, panels.items(), strict=False):
        for number, (seed, points) in enumerate(lines.items()):
            look = {"color": COLOURS[number], "linestyle": DASHES[number], "marker": MARKERS[number]}
            shown = [(texts / 1000, 100 * value) for texts, value in points]
            axes.plot(*zip(*shown, strict=True), **look, markersize=4, linewidth=1.4, label=f"seed {seed}")
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
