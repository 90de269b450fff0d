"""Draw the figure of docs/architecture.md: `python docs/pipeline.py` writes `pipeline.svg` beside this."""

import itertools
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK, GREY = "#1f2933", "#5f6c7b"
PROCESS, SERVER, DOMAIN = "#dbe9f6", "#e3f1e3", "#fbeed5"
WEIGHTS = "#b8430f"
Point = tuple[float, float]


def box(axes: Axes, x: float, y: float, w: float, h: float, colour: str, title: str, lines: str) -> None:
    """A rounded box with its lower left corner at (x, y)."""
    style = "round,pad=0,rounding_size=0.12"
    axes.add_patch(FancyBboxPatch((x, y), w, h, boxstyle=style, fc=colour, ec=INK, lw=1.1))
    axes.text(x + w / 2, y + h - 0.3, title, ha="center", va="center", size=11, weight="bold", color=INK)
    axes.text(x + w / 2, y + h - 0.56, lines, ha="center", va="top", size=8.6, color=INK, linespacing=1.35)


def arrow(axes: Axes, points: list[Point], colour: str = INK, dashed: bool = False) -> None:
    """Straight segments through the points, a head at the last one."""
    style = "--" if dashed else "-"
    width = 1.9 if colour == WEIGHTS else 1.3
    for start, end in itertools.pairwise(points[:-1]):
        axes.plot(*zip(start, end), color=colour, lw=width, ls=style, solid_capstyle="round")
    head = FancyArrowPatch(points[-2], points[-1], arrowstyle="-|>", mutation_scale=13, shrinkA=0, shrinkB=0)
    head.set(color=colour, lw=width, ls=style)
    axes.add_patch(head)


def label(axes: Axes, x: float, y: float, text: str, colour: str = GREY, ha: str = "center") -> None:
    axes.text(x, y, text, ha=ha, va="center", size=8.6, color=colour, linespacing=1.3)


def draw(axes: Axes) -> None:
    box(axes, 0.1, 3.0, 1.9, 1.5, DOMAIN, "domain", "problems,\nrollout code,\nrewards")
    box(
        axes,
        3.1,
        3.0,
        2.1,
        1.5,
        PROCESS,
        "actor",
        "runs groups of rollouts\nwithin the lag budget;\nevaluates",
    )
    box(axes, 7.0, 3.0, 2.1, 1.5, PROCESS, "preprocess", "advantages, filter,\npacking into\nmicro-batches")
    box(axes, 10.9, 3.0, 2.1, 1.5, PROCESS, "finetune", "loss, optimizer step,\ncheckpoints,\nnew weights")
    box(axes, 0.1, 0.35, 1.9, 1.3, SERVER, "retrieval", "search over private\nand web documents")
    box(axes, 3.1, 0.35, 2.1, 1.3, SERVER, "engine", "samples tokens;\nrequests go on across\nweight updates")

    arrow(axes, [(2.0, 3.75), (3.1, 3.75)])
    label(axes, 2.55, 3.95, "imported")
    arrow(axes, [(5.2, 3.75), (7.0, 3.75)])
    label(axes, 6.1, 4.05, 'stream "actor"\ncomplete groups')
    arrow(axes, [(9.1, 3.75), (10.9, 3.75)])
    label(axes, 10.0, 4.05, 'stream "training_data"\nmicro-batches')

    arrow(axes, [(3.75, 3.0), (3.75, 1.65)])
    label(axes, 3.68, 2.33, "token ids", ha="right")
    arrow(axes, [(4.55, 1.65), (4.55, 3.0)])
    label(axes, 4.62, 2.33, "token ids, log-probabilities,\nversion of the weights per token", ha="left")
    arrow(axes, [(3.3, 3.0), (3.3, 2.7), (1.05, 2.7), (1.05, 1.65)])
    label(axes, 1.12, 2.2, "queries,\ndocuments", ha="left")

    arrow(axes, [(11.95, 3.0), (11.95, 1.0), (5.2, 1.0)], WEIGHTS)
    label(axes, 8.6, 1.2, "new weights, taken between two decoding steps", WEIGHTS)

    arrow(axes, [(11.95, 4.5), (11.95, 5.0), (8.05, 5.0), (8.05, 4.5)], GREY, dashed=True)
    arrow(axes, [(8.05, 5.0), (4.15, 5.0), (4.15, 4.5)], GREY, dashed=True)
    label(axes, 10.0, 5.18, "number of the new version")
    label(
        axes, 9.1, 0.42, "The launcher starts, watches and stops all five processes; the domain is a module."
    )


def main() -> None:
    matplotlib.rcParams["svg.hashsalt"] = "pipelinerl"
    figure = plt.figure(figsize=(10.6, 4.4))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 13.1), ylim=(0.1, 5.4))
    axes.axis("off")
    draw(axes)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".svg")
    metadata = {"Date": None} if target.suffix == ".svg" else None
    figure.savefig(target, dpi=110, facecolor="white", metadata=metadata)


if __name__ == "__main__":
    main()
