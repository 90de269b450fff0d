"""Redraws the figures of results from their JSON: `python -m benchmarks.figures [NAME ...]`.

NAME is a figure of `benchmarks/results` without its ending; without one, all that can be drawn again are. No
run is made and no JSON is written. Every figure gets a dark variant beside it, `NAME_dark.png`.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import _learning_figure, capacity
from benchmarks._figures import RESULTS, command_line
from benchmarks._spec import SPECS, read
from benchmarks.experiment import panels
from pipelinerl.observe.figure_style import MARKERS, WIDTH, colour, save

Found = Mapping[str, Any]
_TOGETHER = {"success": "success, held-out chains", "leak": "leakage, held-out chains"}


def by_specification() -> dict[str, Callable[[Found, Path], None]]:
    """By result, how the experiments of `benchmarks/specs` draw theirs."""
    found: dict[str, Callable[[Found, Path], None]] = {}
    for path in sorted(SPECS.glob("*.yaml")):
        for place in (spec := read(path.stem)).hardware.values():
            found[place.result] = partial(_experiment, spec)
    return found


def _experiment(spec: Any, found: Found, path: Path) -> None:
    rows = found["rows"]
    by_arm = rows if isinstance(rows, dict) else {next(iter(spec.arms)): rows}
    _learning_figure.draw(panels(spec, by_arm), path)


def arms(found: Found, path: Path) -> None:
    """Success and leakage of the privacy agent's arms over training, a line for each seed."""
    drawn = {
        title: {
            arm: [list(zip(seed["texts"], seed[metric], strict=True)) for seed in seeds.values()]
            for arm, seeds in found["curves"].items()
        }
        for metric, title in _TOGETHER.items()
    }
    _learning_figure.draw(drawn, path, "percent of rollouts")


def success_over_leakage(found: Found, path: Path) -> None:
    """Where the arms began and ended: success over leakage with 95 % intervals, each seed as a small mark."""
    save(path, partial(_success_over_leakage, found))


def _success_over_leakage(found: Found, figure: Any) -> None:
    figure.set_size_inches(WIDTH, 4.4)
    axes, table = figure.subplots(), found["table"]
    start = table["start"]
    names = [name for name in table if name in found["curves"]]
    for index, name in enumerate(["start", *names], -1):
        success, leak = table[name]["success"], table[name]["leak"]
        seeds = found["curves"].get(name) or found["curves"][names[0]]
        # Every arm of a seed begins with the same start.
        at = 0 if name == "start" else -1
        ends = [(seed["leak"][at], seed["success"][at]) for seed in seeds.values()]
        look = {"color": colour(index), "marker": MARKERS[index]}
        axes.scatter(*zip(*ends, strict=True), alpha=0.4, s=22, **look)
        axes.errorbar(
            leak["mean"],
            success["mean"],
            xerr=_beside(leak),
            yerr=_beside(success),
            capsize=3,
            markersize=8,
            linestyle="none",
            label=f"{name} ({len(ends)} seeds)",
            **look,
        )
        if name != "start":
            arrow = {"arrowstyle": "->", "color": colour(index), "alpha": 0.6}
            begin = start["leak"]["mean"], start["success"]["mean"]
            axes.annotate("", (leak["mean"], success["mean"]), begin, arrowprops=arrow)
    axes.set(xlim=(0, None), ylim=(0, 1), ylabel="chains answered (share)")
    axes.set_xlabel("rollouts that leak an answer or the full information (share)")
    axes.legend(loc="lower right")


def _beside(interval: Mapping[str, float]) -> list[list[float]]:
    return [[interval["mean"] - interval["low"]], [interval["high"] - interval["mean"]]]


def _capacity(found: Found, path: Path) -> None:
    save(path, partial(capacity.draw, found))


def drawers() -> dict[str, Callable[[Found, Path], None]]:
    """By name, how each figure is drawn from its JSON."""
    own = {"arms": arms, "arms_four_hops": arms, "gpu_privacy_language": success_over_leakage}
    return by_specification() | own | {"capacity": _capacity}


def main(argv: Sequence[str] | None = None) -> int:
    known = drawers()
    there = [path.stem for path in sorted(RESULTS.glob("*.png")) if path.stem in known]
    asked = command_line(__doc__, argv).words or there
    if unknown := [name for name in asked if name not in there]:
        print(f"figures: {unknown[0]} cannot be drawn again; there are {', '.join(there)}", file=sys.stderr)
        return 2
    for name in asked:
        found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        known[name](found, RESULTS / f"{name}.png")
        print(RESULTS / f"{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
