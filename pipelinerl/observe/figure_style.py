"""One look for every figure, of reports, domains and benchmarks: fonts for one column, on light and on dark.

Colours are Okabe and Ito's, lighter ones of the same hues on dark; lines also differ in dash and marker, so
that figures survive a black-and-white printer and every kind of colour vision.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter

from pipelinerl.base.files import naming
from pipelinerl.observe.report_page import Drawn

WIDTH = 5.6
"""Inches of a figure of one column: on a telephone of 390 pixels its letters are still eight pixels high."""
LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DARK = ("#4FA8E0", "#FF8F4A", "#3CCB9F", "#E7A3CB", "#F5BE4F", "#9AD6F7", "#E7E8EA")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
TEXTS = "samples trained on"
_INK = {False: ("#ffffff", "#1b1c1e"), True: ("#18191c", "#e7e8ea")}


def colour(index: int) -> str:
    """The colour of a line; those of the style that is in use."""
    colours = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    return str(colours[index % len(colours)])


def style(dark: bool = False) -> dict[str, Any]:
    """Parameters for `plt.rc_context`."""
    paper, ink = _INK[dark]
    painted = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    return {
        "figure.figsize": (WIDTH, 3.2),
        "figure.dpi": 160,
        "figure.constrained_layout.use": True,
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "axes.labelsize": 10,
        "xtick.labelsize": 9.5,
        "ytick.labelsize": 9.5,
        "legend.fontsize": 9.5,
        "legend.frameon": False,
        "legend.handlelength": 2.6,
        "lines.linewidth": 1.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.alpha": 0.3,
        "axes.prop_cycle": cycler(color=DARK if dark else LIGHT),
        "figure.facecolor": paper,
        "savefig.facecolor": paper,
        "axes.facecolor": paper,
        "grid.color": "#8a8d93",
        **dict.fromkeys(painted, ink),
    }


def save(path: Path, draw: Callable[[Any], None]) -> Drawn | None:
    """Write the figure that `draw` makes, and beside `x.png` for dark pages `x_dark.png`.

    None, and no file, if it had nothing to show. Raises OSError that names the file.
    """
    drawn = Drawn(path, path.with_name(f"{path.stem}_dark{path.suffix}"))
    with plt.rc_context(style()), _drawn(draw) as figure:
        if not any(axes.has_data() for axes in figure.axes):
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        ConstrainedLayoutEngine().execute(figure)  # as an engine of the figure it would draw once more
        places = [axes.get_position() for axes in figure.axes]
        whole = figure.get_tightbbox().padded(plt.rcParams["savefig.pad_inches"])
        with naming(drawn.light):
            figure.savefig(drawn.light, bbox_inches=whole)
    # Colours move nothing: to find the places again would take twice as long as to draw.
    with plt.rc_context(style(dark=True)), _drawn(draw) as figure:
        for axes, place in zip(figure.axes, places, strict=True):
            axes.set_position(place)
        with naming(drawn.dark):
            figure.savefig(drawn.dark, bbox_inches=whole)
    return drawn


@contextmanager
def _drawn(draw: Callable[[Any], None]) -> Iterator[Any]:
    figure = plt.figure(layout="none")
    try:
        draw(figure)
        for axes in figure.axes:
            if axes.get_xlabel() == TEXTS and axes.get_xlim()[1] >= 10_000:
                axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 125k: six digits run together
        yield figure
    finally:
        plt.close(figure)


def legend(axes: Any, below: bool = False) -> None:
    """A legend beside the title, or below the figure: lines could run under one inside."""
    handles, labels = axes.get_legend_handles_labels()
    if labels and below:
        columns = 3 if max(map(len, labels)) <= 14 else 2
        axes.figure.legend(handles, labels, loc="outside lower left", ncols=min(columns, len(labels)))
    elif labels:
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(labels), borderaxespad=0.1)
