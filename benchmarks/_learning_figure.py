"""The figure of benchmarks that train: a panel per subject, a line per run, values over samples trained.

Runs that share a label are thin lines, and their mean a thick one.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipelinerl.observe.figure_style import DASHES, MARKERS, WIDTH, colour, save

COLUMNS = 2
"""Panels beside each other: more would have letters that cannot be read in a column."""
Panel = Mapping[str, Sequence[Sequence[tuple[float, float]]]]
"""By label, a seed or an arm, its lines: (samples trained, value from 0 to 1) of each evaluation."""


def draw(panels: Mapping[str, Panel], path: Path, said: str = "percent of held-out problems") -> None:
    """Write the figure, light and dark; `said` stands at the axis of values, which are shown in percent."""
    save(path, partial(_draw, panels=panels, said=said))


def _draw(figure: Any, panels: Mapping[str, Panel], said: str) -> None:
    columns = min(len(panels), COLUMNS)
    rows = math.ceil(len(panels) / columns)
    figure.set_size_inches(WIDTH if columns == 1 else 1.3 * WIDTH, 3.0 * rows + 0.4)
    table = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for unused in table.flat[len(panels) :]:
        unused.remove()
    for axes, (title, lines) in zip(table.flat, panels.items(), strict=False):
        for number, (label, runs) in enumerate(lines.items()):
            runs_of(axes, [np.array(points, np.float64) * (1 / 1000, 100) for points in runs], label, number)
        axes.set(title=title, xlabel="thousand samples trained", ylim=(-2, 102))
    for first in table[:, 0]:
        first.set_ylabel(said)
    handles, labels = table[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=min(len(labels), 1 + 2 * columns))


def runs_of(axes: Any, runs: Sequence[np.ndarray], label: str, number: int) -> None:
    """A label of a panel: its runs, each [points, 2], thin, and their mean where they have as many points."""
    look = {"color": colour(number), "linestyle": DASHES[number], "marker": MARKERS[number]}
    alike = len(runs) > 1 and len({len(points) for points in runs}) == 1
    if alike:  # the mean of the runs stands out, and what it is made of stays visible
        for points in runs:
            axes.plot(*points.T, color=look["color"], linestyle=look["linestyle"], lw=0.9, alpha=0.45)
        runs = [np.mean(runs, axis=0)]
    for index, points in enumerate(runs):
        axes.plot(*points.T, **look, markersize=4.5, label=label if index == 0 else None)
