"""The figure of how the optimum turns from manipulation to help, drawn by `optimum` and `ablate`."""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from domains.reputation_hacking.game.dynamic_programming import Optimal, solve
from domains.reputation_hacking.game.dynamics import HELP, Tapes
from domains.reputation_hacking.game.figures import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    describe,
    new_figure,
    save,
)
from domains.reputation_hacking.game.optimum import horizons
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import play

BY_STEP = (0.6, 0.7, 0.8)
Row = Mapping[str, Any]
Rows = Sequence[Row]


def draw_transition(
    path: Path,
    params: Params,
    tapes: Tapes,
    optimum: Rows,
    learned: Rows = (),
) -> None:
    """HELP share; TrueImpact and ManipulationScore; look-ahead; behaviour by step.

    `learned` are deterministic policies: c_signal, features, help, true_impact, manipulation_score.
    """
    figure, axes = new_figure(2, 2, width=11.0, height=8.2)
    price = [row["c_signal"] for row in optimum]
    _help_share(axes[0, 0], params, price, optimum, learned)
    _scores(axes[0, 1], price, optimum, learned)
    _look_ahead(axes[1, 0], params, tapes)
    _by_step(axes[1, 1], params, tapes)
    figure.suptitle(
        f"From seeming to help to helping: calibrated evaluation, n = {len(tapes)} held-out seeds, s = "
        f"{params.signal_strength:g}",
        fontsize=11,
    )
    save(figure, path)


_LEARNED = {
    "raw": ("PPO, raw observations", "^", "none", ORANGE),
    "scaled": ("PPO, scaled features", "o", "full", BLUE),
    "language": ("language model", "*", "full", GREEN),
}


def _marks(
    axis: Axes, learned: Rows, value: Callable[[Row], float], size: int, *, of: str = "", colour: str = ""
) -> None:
    """A mark for every learned policy, in its kind's colour unless given; `of` begins the label."""
    for features, (name, mark, fill, own) in _LEARNED.items():
        rows = [row for row in learned if row["features"] == features]
        if rows:
            axis.plot(
                [row["c_signal"] for row in rows],
                [value(row) for row in rows],
                linestyle="none",
                marker=mark,
                markersize=size + 4 * (mark == "*"),
                fillstyle=fill,  # type: ignore[arg-type]
                color=colour or own,
                label=of + name,
            )


def _help_share(axis: Axes, params: Params, price: list[float], optimum: Rows, learned: Rows) -> None:
    axis.plot(price, [row["help"] / params.T for row in optimum], color=BLACK, linewidth=1.8, label="optimum")
    _marks(axis, learned, lambda row: row["help"] / params.T, 6)
    axis.set_ylim(-0.04, 1.04)
    describe(
        axis,
        x="price of a SIGNAL, c_signal",
        y="share of HELP among all actions",
        title="the optimum turns smoothly, a poor optimiser jumps",
    )


def _scores(axis: Axes, price: list[float], optimum: Rows, learned: Rows) -> None:
    for key, label, colour, style in (
        ("true_impact", "TrueImpact", GREEN, "-"),
        ("manipulation_score", "ManipulationScore", PURPLE, "--"),
    ):
        values = [row[key] for row in optimum]
        axis.plot(price, values, color=colour, linestyle=style, label=f"{label}, optimum")
        _marks(axis, learned, itemgetter(key), 5, of=f"{label}, ", colour=colour)
    describe(
        axis,
        x="price of a SIGNAL, c_signal",
        y="effort units an episode",
        title="what is real and what is only believed",
        legend=7,
    )


def _look_ahead(axis: Axes, params: Params, tapes: Tapes) -> None:
    points = horizons(params, tapes)
    axis.plot([k for k, _ in points], [value for _, value in points], color=BLUE, marker="o")
    for k, value in points:
        axis.annotate(f"{value:.3f}", (k, value), (5, 5), textcoords="offset points", fontsize=8)
    axis.set_xscale("log")
    axis.margins(0.12, 0.1)  # room for the last label, right of its point
    describe(
        axis,
        x="episodes that the optimiser looks ahead, one Worker",
        y="net value of a SIGNAL",
        title="where all-SIGNAL equals all-HELP: the far-sighted give up help sooner",
        legend=None,
    )


def _by_step(axis: Axes, params: Params, tapes: Tapes) -> None:
    for price, colour, mark in zip(BY_STEP, (ORANGE, BLUE, GREEN), ("^", "o", "s"), strict=True):
        game = params.but(c_signal=price)
        episodes = play(game, tapes, Optimal(solve(game)))
        axis.plot(
            (episodes.actions == HELP).mean(1),
            color=colour,
            marker=mark,
            markevery=7,
            markersize=4,
            label=f"HELP, c_signal = {price:g}",
        )
        axis.plot(1.0 - episodes.works.mean(1), color=colour, linestyle=":", linewidth=1.0)
    axis.plot([], [], color=GREY, linestyle=":", label="Worker rests")
    axis.set_ylim(-0.03, 1.03)
    describe(axis, x="step", y="share of episodes", title="the optimum by step")
