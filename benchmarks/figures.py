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

import numpy as np
from matplotlib.legend import Legend
from matplotlib.ticker import ScalarFormatter

from benchmarks import _learning_figure, capacity
from benchmarks._figures import RESULTS, command_line
from benchmarks._intervals import t_interval
from benchmarks._spec import SPECS, read
from benchmarks.experiment import panels
from domains.reputation_hacking.game import transition
from pipelinerl.observe.figure_style import DASHES, MARKERS, WIDTH, colour, save
from pipelinerl.observe.plots import smooth

Found = Mapping[str, Any]
_TOGETHER = {"success": "success, held-out chains", "leak": "leakage, held-out chains"}
_ARMS = {"penalty": "situational + penalty"}
_RARO = {
    "sft": "more SFT",
    "raro": "RARO",
    "rlvr": "verifier RL",
    "no_replay": "RARO without replay",
    "no_tie": "RARO without ties",
    "half": "RARO, weights 1/2 each",
}
_GREY = "#8a8d93"
_SMOOTHED = 9
"""Records that a point of the game's curves is the mean of."""
_LADDER = {
    "optimum": "optimum",
    "cem": "",
    "rule": "rules",
    "all_signal": "",
    "all_help": "all-HELP, all-SIGNAL",
    "random": "random",
}
"""Names of the policies beside a language model; those without one lie on the next one's line."""


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


def success_over_leakage(found: Found, figure: Any) -> None:
    """Where the arms began and ended: success over leakage, each seed as a small mark.

    Bars are 95 % intervals over seeds (Student's t), cut at 0 and 1: seeds differ more than chains do.
    """
    figure.set_size_inches(WIDTH, 4.4)
    axes, table = figure.subplots(), found["table"]
    names = [name for name in table if name in found["curves"]]
    for index, name in enumerate(["start", *names], -1):
        seeds = found["curves"].get(name) or found["curves"][names[0]]
        # Every arm of a seed begins with the same start.
        at = 0 if name == "start" else -1
        ends = [(seed["leak"][at], seed["success"][at]) for seed in seeds.values()]
        (leak, across), (success, along) = (_over_seeds(values) for values in zip(*ends, strict=True))
        look = {"color": colour(index), "marker": MARKERS[index]}
        axes.scatter(*zip(*ends, strict=True), alpha=0.4, s=22, **look)
        axes.errorbar(
            leak,
            success,
            xerr=across,
            yerr=along,
            capsize=3,
            markersize=8,
            linestyle="none",
            label=f"{_ARMS.get(name, name)} ({len(ends)} seeds)",
            **look,
        )
        if name == "start":
            start = leak, success
        else:
            arrow = {"arrowstyle": "->", "color": colour(index), "alpha": 0.6}
            axes.annotate("", (leak, success), start, arrowprops=arrow)
    axes.set(xlim=(0, None), ylim=(0, 1), ylabel="success (share of chains answered)")
    axes.set_xlabel("leakage (share of rollouts that reveal an answer or a fact)")
    axes.legend(loc="lower right")


def _over_seeds(values: Sequence[float]) -> tuple[float, list[list[float]]]:
    """Mean, and how far its 95 % interval over seeds reaches below and above it within 0 and 1."""
    mean, half = t_interval(values)
    assert half is not None
    return mean, [[min(half, mean)], [min(half, 1 - mean)]]


def share_of_margin(found: Found, figure: Any) -> None:
    """What a language model takes of the margin over training, beside policies that play by a rule."""
    figure.set_size_inches(WIDTH, 4.2)
    axes, last = figure.subplots(), 0.0
    for index, (seed, row) in enumerate(found["rows"].items()):
        look, last = {"color": colour(index), "marker": MARKERS[index]}, row["rates"]["trained_texts"] / 1000
        drawn = [(point["texts"] / 1000, point["share"]) for point in row["training"]]
        axes.plot(
            *zip(*drawn, strict=True),
            linestyle=DASHES[index],
            markersize=3.5,
            label=f"seed {seed}, answers drawn in training",
            **look,
        )
        for at, when in ((0.0, "before"), (last, "after")):
            mean, low, high = row[when]["share_of_margin"]
            axes.errorbar(
                at + last * 0.02 * (index - 1),
                mean,
                [[mean - low], [high - mean]],
                mfc="none",
                capsize=3,
                ms=7,
                **look,
            )
    said = "likeliest answers, 95 % interval over tapes"
    axes.errorbar([], [], [], color=_GREY, marker="o", mfc="none", capsize=3, ms=7, ls="none", label=said)
    for policy in found["rows"]["0"]["ladder"]:
        axes.axhline(policy["share"], color=_GREY, lw=0.9, zorder=0)
        name = _LADDER[policy["policy"]]
        if name:
            axes.annotate(
                name, (1.01, policy["share"]), xycoords=("axes fraction", "data"), va="center", fontsize=9
            )
    axes.set(xlabel="thousand samples trained", ylabel="share of the margin", ylim=(-3.0, 1.1))
    figure.legend(loc="outside lower left")


def raro(found: Found, path: Path) -> None:
    """Percent of held-out questions right by arm, and the game between critic and policy on fresh pairs."""
    save(path, partial(_raro, found["runs"]))


def _raro(runs: Sequence[Found], figure: Any) -> None:
    ways = {"sampled": "curve", **({"greedy": "greedy"} if any(run["greedy"] for run in runs) else {})}
    figure.set_size_inches(1.3 * WIDTH, 6.2 if len(ways) == 2 else 4.2)
    if len(ways) == 2:
        panels = figure.subplot_mosaic([["sampled", "greedy"], ["game", "key"]])
    else:
        panels = figure.subplot_mosaic([["sampled", "game"], ["key", "key"]], height_ratios=(3, 1))
    for way, kept in ways.items():
        for index, (arm, title) in enumerate(_RARO.items()):
            curves = [run[kept] for run in runs if run["arm"] == arm]
            if curves:
                _learning_figure.runs_of(panels[way], list(map(_points, curves)), title, index)
        highest = max(value for run in runs for value in run[kept].values())
        panels[way].set(title=f"held-out questions, {way}", ylabel="percent right", ylim=(0, 1.06 * highest))
        _completions(panels[way], [_points(run[kept])[:, 0] for run in runs])
    for run in (run for run in runs if run["arm"] == "raro"):
        for index, name in enumerate(run["game"]):
            points = _points(run["game"][name])
            label = None if run["seed"] else name
            look = {"color": colour(index), "linestyle": DASHES[index], "lw": 1.1}
            panels["game"].plot(points[:, 0], smooth(points[:, 1], _SMOOTHED), label=label, **look)
    panels["game"].set(title="RARO: the game on fresh pairs", ylabel="share", ylim=(0, 1))
    panels["game"].set_xlabel("thousand policy completions")
    _keys(panels, [(0.0, 1.12), (0.0, 0.34)] if len(ways) == 2 else [(0.0, 1.0), (0.55, 1.0)])


def _keys(panels: Mapping[str, Any], places: Sequence[tuple[float, float]]) -> None:
    """Both legends in a place of their own: in the panels they would cover lines."""
    key = panels["key"]
    key.axis("off")
    for panel, place in (("sampled", places[0]), ("game", places[1])):
        handles, labels = panels[panel].get_legend_handles_labels()
        title = "answers of" if panel == "sampled" else "the game, each seed"
        shown = Legend(key, handles, labels, loc="upper left", bbox_to_anchor=place, title=title)
        shown.set_alignment("left")
        key.add_artist(shown)


def _points(curve: Mapping[str, float]) -> np.ndarray:
    """[points, 2]: thousand completions, value."""
    return np.array([(float(at) / 1000, value) for at, value in curve.items()], np.float64)


def _completions(axes: Any, at: Sequence[np.ndarray]) -> None:
    """The axis of completions: logarithmic from the first evaluation where arms differ much in length."""
    said = "thousand completions\n(more SFT: expert answers)"
    if max(one[-1] for one in at) > 3 * min(one[-1] for one in at):
        first, last = min(one[1] for one in at), max(one[-1] for one in at)
        axes.set_xscale("symlog", linthresh=first)
        axes.set_xticks([tick for tick in (0, 1, 2, 5, 10, 20, 50) if tick < last])
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.minorticks_off()
        axes.set_xlim(-0.1 * first, 1.2 * last)
        said = f"thousand completions (more SFT: answers),\nlogarithmic from {first:.1f}"
    axes.set_xlabel(said)


def _whole(draw: Callable[[Found, Any], None], found: Found, path: Path) -> None:
    save(path, partial(draw, found))


def drawers() -> dict[str, Callable[[Found, Path], None]]:
    """By name, how each figure is drawn from its JSON."""
    own = {"arms": arms, "raro_reference": raro, "gpu_raro": raro}
    whole = {
        "capacity": capacity.draw,
        "gpu_privacy_language": success_over_leakage,
        "gpu_reputation": share_of_margin,
        "reputation_transition": transition.draw,
    }
    return by_specification() | own | {name: partial(_whole, draw) for name, draw in whole.items()}


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
