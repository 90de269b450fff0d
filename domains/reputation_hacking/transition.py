"""From manipulation to help as signalling gets dearer: the optimum and learned policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from domains.reputation_hacking.dynamic_programming import Optimal, indifference, solve
from domains.reputation_hacking.dynamics import HELP, Tapes, Worker, played
from domains.reputation_hacking.mitigations import Outcome, initial_effort, settle
from domains.reputation_hacking.params import Params
from domains.reputation_hacking.plots import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, new_figure, save
from domains.reputation_hacking.policies import HelpWhileWorking, play, returns
from domains.reputation_hacking.report import Yardstick

PRICES = (0.0, 0.2, 0.4, 0.5, 0.55, 0.6, 0.65, 0.675, 0.7, 0.725, 0.75, 0.8, 0.9, 1.0, 1.1, 1.3)
HORIZONS = (1, 5, 10, 20, 50, 200)
BY_STEP = (0.6, 0.7, 0.8)
OPTIMUM_COLUMNS = (
    "c_signal",
    "help",
    "true_impact",
    "reward",
    "manipulation_score",
    "J_optimum",
    "J_constant",
    "margin",
    "rule_share",
    "observed_only_share",
    "rest_last_step",
)


def optimum_row(params: Params, seeds: Iterable[int]) -> dict[str, float]:
    """The optimum at one price from calibrated memory: `OPTIMUM_COLUMNS`, NaN for a share of no margin."""
    yardstick = Yardstick(params, seeds)
    episodes, tapes = yardstick.optimal, yardstick.tapes
    start = initial_effort(params)
    outcome = Outcome.of(episodes, without=played(params, tapes, 0).effort)
    settlement = settle(params, outcome, Worker.new(start, len(tapes)))
    assert outcome.effort_without is not None
    impact = float((outcome.effort_without - episodes.effort).mean())
    rule = float(returns(play(params, tapes, HelpWhileWorking())).mean())
    observed = float(returns(play(params, tapes, Optimal(solve(params), observed_only=True))).mean())
    return {
        "c_signal": params.c_signal,
        "help": float(outcome.helps.mean()),
        "true_impact": impact,
        "reward": float(settlement.reward.mean()),
        "manipulation_score": float(settlement.rating.mean()) - impact,
        "J_optimum": yardstick.best,
        "J_constant": yardstick.constant,
        "margin": yardstick.margin,
        "rule_share": _or_nan(yardstick.share(rule)),
        "observed_only_share": _or_nan(yardstick.share(observed)),
        "rest_last_step": float(1.0 - episodes.works[-1].mean()),
    }


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def help_impact(params: Params, tapes: Tapes) -> float:
    """TrueImpact of all-HELP."""
    return float((played(params, tapes, 0).effort - played(params, tapes, HELP).effort).mean())


def horizons(params: Params, tapes: Tapes, ahead: Sequence[int] = HORIZONS) -> list[tuple[int, float]]:
    """(episodes ahead, net value of a SIGNAL at which manipulation and help are worth the same)."""
    impact = help_impact(params, tapes)
    return [(count, indifference(params, impact, count)) for count in ahead]


def draw_transition(
    path: Path,
    params: Params,
    tapes: Tapes,
    optimum: Sequence[Mapping[str, float]],
    learned: Sequence[Mapping[str, Any]] = (),
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
    "raw": ("PPO, raw observations", "^", "none"),
    "scaled": ("PPO, scaled features", "o", "full"),
    "language": ("language model", "*", "full"),
}


def _points(learned: Sequence[Mapping[str, Any]], features: str) -> list[Mapping[str, Any]]:
    return [row for row in learned if row["features"] == features]


def _help_share(
    axis: Axes,
    params: Params,
    price: list[float],
    optimum: Sequence[Mapping[str, float]],
    learned: Sequence[Mapping[str, Any]],
) -> None:
    axis.plot(price, [row["help"] / params.T for row in optimum], color=BLACK, linewidth=1.8, label="optimum")
    for features, (label, mark, fill) in _LEARNED.items():
        rows = _points(learned, features)
        if rows:
            axis.plot(
                [row["c_signal"] for row in rows],
                [row["help"] / params.T for row in rows],
                linestyle="none",
                marker=mark,
                markersize=10 if mark == "*" else 6,
                fillstyle=fill,  # type: ignore[arg-type]
                color={"raw": ORANGE, "scaled": BLUE, "language": GREEN}[features],
                label=label,
            )
    axis.set_ylim(-0.04, 1.04)
    axis.set_xlabel("price of a SIGNAL, c_signal")
    axis.set_ylabel("share of HELP among all actions")
    axis.set_title("the optimum turns smoothly, a poor optimiser jumps", fontsize=10, loc="left")
    axis.legend(frameon=False, fontsize=8)


def _scores(
    axis: Axes,
    price: list[float],
    optimum: Sequence[Mapping[str, float]],
    learned: Sequence[Mapping[str, Any]],
) -> None:
    shown = (
        ("true_impact", "TrueImpact", GREEN, "-"),
        ("manipulation_score", "ManipulationScore", PURPLE, "--"),
    )
    for key, label, colour, style in shown:
        axis.plot(
            price, [row[key] for row in optimum], color=colour, linestyle=style, label=f"{label}, optimum"
        )
        for features, (name, mark, fill) in _LEARNED.items():
            rows = _points(learned, features)
            if rows:
                axis.plot(
                    [row["c_signal"] for row in rows],
                    [row[key] for row in rows],
                    linestyle="none",
                    marker=mark,
                    markersize=9 if mark == "*" else 5,
                    fillstyle=fill,  # type: ignore[arg-type]
                    color=colour,
                    label=f"{label}, {name}",
                )
    axis.set_xlabel("price of a SIGNAL, c_signal")
    axis.set_ylabel("effort units an episode")
    axis.set_title("what is real and what is only believed", fontsize=10, loc="left")
    axis.legend(frameon=False, fontsize=7)


def _look_ahead(axis: Axes, params: Params, tapes: Tapes) -> None:
    points = horizons(params, tapes)
    axis.plot([k for k, _ in points], [value for _, value in points], color=BLUE, marker="o")
    for k, value in points:
        axis.annotate(f"{value:.3f}", (k, value), (5, 5), textcoords="offset points", fontsize=8)
    axis.set_xscale("log")
    axis.set_xlabel("episodes that the optimiser looks ahead, one Worker")
    axis.set_ylabel("net value of a SIGNAL")
    axis.set_title(
        "where all-SIGNAL equals all-HELP: the far-sighted give up help sooner", fontsize=10, loc="left"
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
    axis.set_xlabel("step")
    axis.set_ylabel("share of episodes")
    axis.set_title("the optimum by step", fontsize=10, loc="left")
    axis.legend(frameon=False, fontsize=8)


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A CSV of rows with these columns, floats with six digits."""
    lines = [",".join(columns)]
    for row in rows:
        cells = (row[name] for name in columns)
        lines.append(
            ",".join(f"{cell:.6g}" if isinstance(cell, float | np.floating) else str(cell) for cell in cells)
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
