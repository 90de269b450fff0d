"""Leakage of a run as a figure: one panel per level, one row per set of rollouts.

Adversaries differ in shape as well as in colour (Okabe and Ito's), controls are hollow, so that the figure
survives a black-and-white printer and every kind of colour vision.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from domains.privacy_hopqa.leakage.report import TITLES, LeakageReport
from domains.privacy_hopqa.leakage.table import Reports, spread

MAX_ROWS = 14
_OFFSET = 0.16


def draw(found: Mapping[str, Reports], path: Path) -> Path:
    """Write the figure, light and dark; returns the path of the light one.

    Of more than 14 sets of rollouts evenly spaced ones are shown.
    """
    from pipelinerl.observe.figure_style import save  # matplotlib, which takes a second to import

    save(path, partial(_draw, found))
    return path


def _draw(found: Mapping[str, Reports], figure: Any) -> None:
    from pipelinerl.observe.figure_style import MARKERS, WIDTH, colour

    first = next(iter(found.values()))
    names = spread(list(first), MAX_ROWS)
    figure.set_size_inches(WIDTH, len(TITLES) * (1.1 + 0.34 * len(names)) + 0.6)
    panels = figure.subplots(len(TITLES), 1, sharex=True)
    for axes, (level, title) in zip(panels, TITLES.items(), strict=True):
        for index, (adversary, reports) in enumerate(found.items()):
            offset = _OFFSET * (2 * index - len(found) + 1)
            for row, name in enumerate(names):
                label = adversary if row == 0 else None
                _point(axes, reports[name], level, row + offset, colour(index), MARKERS[index], label)
        axes.set(title=title, xlim=(-0.04, 1.04))
        axes.grid(axis="y", visible=False)
        axes.set_yticks(range(len(names)), [f"{name} (n={first[name].rollouts})" for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
    panels[-1].set(xlabel="share of rollouts that leak")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center")


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
