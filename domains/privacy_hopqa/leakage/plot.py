"""Leakage of a run as a figure: one panel per level, one row per set of rollouts.

Adversaries differ in shape as well as in colour (Okabe and Ito's), controls are hollow, so that the figure
survives a black-and-white printer and every kind of colour vision.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from domains.privacy_hopqa.leakage.report import TITLES, LeakageReport
from domains.privacy_hopqa.leakage.table import Reports, spread

MAX_ROWS = 14
_OFFSET = 0.16


def draw(found: Mapping[str, Reports], path: Path) -> Path:
    """Write the figure and return its path. Of more than 14 sets of rollouts evenly spaced ones are shown."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from pipelinerl.observe.plots import COLOURS, MARKERS

    first = next(iter(found.values()))
    names = spread(list(first), MAX_ROWS)
    style = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "savefig.bbox": "tight"}
    with plt.rc_context(style):
        figure, panels = plt.subplots(
            1, len(TITLES), sharey=True, figsize=(11, 1.6 + 0.42 * len(names)), layout="constrained"
        )
        for axes, (level, title) in zip(panels, TITLES.items(), strict=True):
            for index, (adversary, reports) in enumerate(found.items()):
                colour, marker = COLOURS[index], MARKERS[index]
                offset = _OFFSET * (2 * index - len(found) + 1)
                for row, name in enumerate(names):
                    label = adversary if row == 0 else None
                    _point(axes, reports[name], level, row + offset, colour, marker, label)
            axes.set(title=title, xlim=(-0.04, 1.04), xlabel="share of rollouts that leak")
            axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".5", ".75", "1"])
            axes.grid(axis="x", alpha=0.3)
        panels[0].set_yticks(range(len(names)), [f"{name} (n={first[name].rollouts})" for name in names])
        panels[0].set_ylim(len(names) - 0.5, -0.5)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.savefig(path, dpi=130)
        plt.close(figure)
    return path


def _point(
    axes: Any, report: LeakageReport, level: str, y: float, colour: str, marker: str, label: str | None
) -> None:
    """The rate with its interval, and the larger of the two controls."""
    rate = report.levels[level]
    error = [[max(0.0, rate.value - rate.low)], [max(0.0, rate.high - rate.value)]]
    axes.errorbar(
        rate.value,
        y,
        xerr=error,
        color=colour,
        marker=marker,
        markersize=6,
        capsize=3,
        linestyle="none",
        label=label and f"{label}, 95 % interval over chains",
    )
    control = max(report.empty_log[level], report.company_only[level], key=lambda found: found.value)
    axes.plot(
        control.value,
        y,
        marker=marker,
        markersize=9,
        markerfacecolor="none",
        markeredgecolor=colour,
        linestyle="none",
        label=label and f"{label}, larger of the two controls",
    )
