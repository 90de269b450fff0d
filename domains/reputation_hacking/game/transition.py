"""How the optimum turns from manipulation to help over the price of a signal: numbers, and their figure.

`optimum` and `ablate` write both; `python -m benchmarks.figures` draws the README's from its JSON.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from domains.reputation_hacking.game.dynamic_programming import Optimal, solve
from domains.reputation_hacking.game.dynamics import HELP, Tapes
from domains.reputation_hacking.game.optimum import horizons
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import play
from pipelinerl.observe.figure_style import DASHES, MARKERS, WIDTH, colour, save

BY_STEP = (0.6, 0.7, 0.8)
"""Prices at which the optimum is shown step by step."""
Rows = Sequence[Mapping[str, Any]]
_SHOWN = ("c_signal", "help", "true_impact", "manipulation_score")
_LEARNED = {"scaled": "PPO", "raw": "PPO, raw observations", "language": "language model"}
_SCORES = {"true_impact": "TrueImpact", "manipulation_score": "ManipulationScore"}


def transition(params: Params, tapes: Tapes, optimum: Rows, learned: Rows = ()) -> dict[str, Any]:
    """All numbers of the figure: shares of actions, scores in effort units, shares of episodes by step.

    `learned` are deterministic policies: c_signal, features, train_seed, help, true_impact,
    manipulation_score.
    """
    return {
        "settings": {"held-out seeds": len(tapes), "steps": params.T, "signal": params.signal_strength},
        "optimum": [{key: round(row[key], 4) for key in _SHOWN} for row in optimum],
        "learned": [
            {"policy": row["features"], "seed": int(row["train_seed"])}
            | {key: round(row[key], 4) for key in _SHOWN}
            for row in learned
        ],
        "look_ahead": [[ahead, round(value, 4)] for ahead, value in horizons(params, tapes)],
        "by_step": {f"{price:g}": _by_step(params.but(c_signal=price), tapes) for price in BY_STEP},
    }


def _by_step(game: Params, tapes: Tapes) -> list[float]:
    helped = play(game, tapes, Optimal(solve(game))).actions == HELP
    return [round(float(share), 4) for share in helped.mean(1)]


def write_transition(out: Path, plots: Path, found: Mapping[str, Any]) -> None:
    """`transition.json` in `out`, and its figure, light and dark, in `plots`."""
    (out / "transition.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    save(plots / "transition.png", partial(draw, found))


def draw(found: Mapping[str, Any], figure: Any) -> None:
    """HELP share and scores over prices, look-ahead, the optimum by step."""
    figure.set_size_inches(1.3 * WIDTH, 7.4)
    seeds = found["settings"]["held-out seeds"]
    figure.suptitle(f"calibrated evaluation, {seeds:,} held-out seeds", fontsize=10)
    (actions, scores), (ahead, steps) = figure.subplots(2, 2)
    total = found["settings"]["steps"]
    _over_prices(actions, found, {"help": ""}, 1 / total)
    actions.set(title="what is done", ylabel="share of HELP among actions", ylim=(-0.04, 1.04))
    _over_prices(scores, found, _SCORES, 1.0)
    scores.set(title="what it is worth", ylabel="effort units an episode")
    for axes in (actions, scores):
        axes.set_xlabel("price of a SIGNAL")
        axes.legend(loc="upper left", bbox_to_anchor=(-0.05, -0.2))
    ahead.plot(*zip(*found["look_ahead"], strict=True), color=colour(0), marker=MARKERS[0])
    ahead.set(
        title="all-SIGNAL is worth all-HELP", xscale="log", ylabel="net value of a SIGNAL", ylim=(0, None)
    )
    ahead.set_xticks([count for count, _ in found["look_ahead"]], [str(n) for n, _ in found["look_ahead"]])
    ahead.minorticks_off()
    ahead.set_xlabel("episodes looked ahead")
    for index, (price, shares) in enumerate(found["by_step"].items()):
        look = {"color": colour(index), "linestyle": DASHES[index], "marker": MARKERS[index], "markevery": 7}
        steps.plot(shares, markersize=4, label=f"price of a SIGNAL {price}", **look)
    steps.set(
        title="the optimum by step", xlabel="step", ylabel="share of episodes with HELP", ylim=(-0.03, 1.03)
    )
    steps.legend(loc="upper left", bbox_to_anchor=(-0.05, -0.2))


def _over_prices(axes: Axes, found: Mapping[str, Any], metrics: Mapping[str, str], scale: float) -> None:
    """The optimum as a line for each metric, learned policies as marks, named where there is one metric."""
    price = [row["c_signal"] for row in found["optimum"]]
    known = [name for name in _LEARNED if any(row["policy"] == name for row in found["learned"])]
    for index, (metric, title) in enumerate(metrics.items()):
        of = f"{title}, " if title else ""
        look: dict[str, Any] = {"color": colour(index), "linestyle": DASHES[index]}
        axes.plot(price, [scale * row[metric] for row in found["optimum"]], label=f"{of}optimum", **look)
        for number, name in enumerate(known):
            rows = [row for row in found["learned"] if row["policy"] == name]
            # One metric has a colour for each kind of policy, several have one of their own.
            hue = colour(index if len(metrics) > 1 else 1 + number)
            mark: dict[str, Any] = {"marker": MARKERS[number], "ms": 5 + 2 * number, "ls": "none"}
            at, values = [row["c_signal"] for row in rows], [scale * row[metric] for row in rows]
            mark |= {"color": hue, "mfc": "none" if number else hue}
            axes.plot(at, values, label=None if title else _LEARNED[name], **mark)
