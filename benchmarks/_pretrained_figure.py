"""The figure of `benchmarks.pretrained`: success on held-out questions while training, and by family."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from pipelinerl.observe.plots import COLOURS, DASHES, MARKERS

WIDTH = 0.38


def draw(rows: Sequence[Mapping[str, Any]], table: Mapping[str, Any], path: Path) -> None:
    """Write the figure: a line per seed, and two bars per family with their 95 % intervals."""
    figure, (learning, families) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=(1, 1.2))
    for number, row in enumerate(rows):
        look = {"color": COLOURS[number], "linestyle": DASHES[number], "marker": MARKERS[number]}
        points = [(one["minutes"], 100 * one["success"]) for one in row["curve"]]
        learning.plot(
            *zip(*points, strict=True), **look, markersize=4, linewidth=1.4, label=f"seed {row['seed']}"
        )
    learning.set(
        title="held-out questions", xlabel="minutes of training", ylabel="percent right", ylim=(0, 100)
    )
    names = [name for name in table if name != "all"]
    for side, when in ((-0.5, "before"), (0.5, "after")):
        found = [table[name][when] for name in names]
        heights = [100 * one["mean"] for one in found]
        lower = [100 * (one["mean"] - one["low"]) for one in found]
        upper = [100 * (one["high"] - one["mean"]) for one in found]
        places = [number + side * WIDTH for number in range(len(names))]
        colour = COLOURS[0] if when == "after" else "#BBBBBB"
        families.bar(places, heights, WIDTH, yerr=(lower, upper), color=colour, capsize=3, label=when)
    families.set(title="by family, all seeds", ylim=(0, 100))
    families.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names])
    for axes in (learning, families):
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=9, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)
