"""One style for all figures of this domain: no display, readable in print and with any colour vision."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, GREY, BLACK = "#0072B2", "#D55E00", "#009E73", "#AA4499", "#777777", "#222222"
"""After Okabe and Ito (2008): distinguishable with any colour vision."""
ACTION_COLOURS = (GREY, BLUE, ORANGE)
ACTION_BARS: tuple[dict[str, Any], ...] = tuple(
    {"color": colour, "hatch": hatch, "edgecolor": "white"}
    for colour, hatch in zip(ACTION_COLOURS, ("", "//", ".."), strict=True)
)
DPI = 130


def new_figure(
    rows: int = 1, cols: int = 1, *, width: float = 7.0, height: float = 4.6
) -> tuple[Figure, np.ndarray]:
    """A figure and its axes [rows, cols], in the style of all of them."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, cols, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(True, color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, axes


def describe(
    axis: Axes,
    *,
    x: str = "",
    y: str = "",
    title: str = "",
    size: int = 10,
    loc: str = "left",
    legend: int | None = 8,
) -> None:
    """Labels, a title of `size` at `loc`, and a legend of that font size where there is one."""
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_title(title, fontsize=size, loc=loc)  # type: ignore[arg-type]
    if legend is not None:
        axis.legend(frameon=False, fontsize=legend)


def save(figure: Figure, path: Path) -> None:
    """Write a PNG without times or versions, so equal data give equal files."""
    figure.savefig(path, metadata={"Software": None})
