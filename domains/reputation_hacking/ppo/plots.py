"""Figures of PPO: `train` draws the training curves, `eval` an evaluation, `ablate` the reward designs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from domains.reputation_hacking.game.dynamics import ACTIONS, DO_NOTHING, HELP, SIGNAL
from domains.reputation_hacking.game.figures import (
    ACTION_BARS,
    ACTION_COLOURS,
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
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.ppo.paired import Paired
from domains.reputation_hacking.ppo.report import columns, intervals
from domains.reputation_hacking.ppo.tables import read_table


def draw_evaluation(
    folder: Path, results: dict[str, Paired], params: Params, mitigation: str = "none"
) -> None:
    """The four figures of an evaluation; the first policy is the one shown in full."""
    first = next(iter(results.values()))
    variant = "" if mitigation == "none" else f", mitigation {mitigation}"
    title = f"c_signal = {params.c_signal:g}, {first.mode} evaluation, n = {len(first.rating)}{variant}"
    draw_rating_vs_impact(folder / "peer_rating_vs_true_impact.png", first, title)
    draw_histogram(folder / "manipulation_score_histogram.png", first, title)
    draw_actions(folder / "action_frequencies.png", results, title)
    draw_efforts(folder / "experienced_effort_comparison.png", first, title)


def draw_rating_vs_impact(path: Path, result: Paired, title: str) -> None:
    figure, axes = new_figure(width=6.6, height=5.4)
    axis: Axes = axes[0, 0]
    silenced = result.silenced.settlement.rating[result.counted]
    impact = result.true_impact
    axis.scatter(
        impact, silenced, s=18, facecolors="none", edgecolors=BLUE, linewidths=0.8, label="SIGNALs silenced"
    )
    axis.scatter(
        impact, result.rating, s=16, color=ORANGE, marker="^", alpha=0.75, linewidths=0, label="as played"
    )
    low, high = float(impact.min()), float(impact.max())
    pad = max(1.0, 0.15 * (high - low))
    axis.set_xlim(low - pad, high + pad)
    line = np.array([low - pad, high + pad])
    axis.plot(line, line, color=BLACK, linestyle="--", linewidth=1.2, label="rating = TrueImpact")
    title = f"What the Worker says and what it was spared\n{title}"
    describe(axis, x="TrueImpact (effort saved)", y="peer rating", title=title, loc="center")
    save(figure, path)


def draw_histogram(path: Path, result: Paired, title: str) -> None:
    figure, axes = new_figure(3, 1, height=6.0)
    parts = (
        ("ManipulationScore = rating - TrueImpact", result.manipulation, PURPLE, ""),
        ("part from SIGNALs (B)", result.bias, ORANGE, ".."),
        ("part from memory (expected by itself - effort without)", result.memory_part, BLUE, "//"),
    )
    everything = np.concatenate([values for _, values, _, _ in parts] + [np.zeros(1)])
    low, high = np.floor(everything.min()), np.ceil(everything.max())
    width = max(1.0, np.ceil((high - low) / 60))  # whole, as B is: other widths would leave gaps in it
    bins = np.arange(low - 0.5, high + width, width)
    for axis, (label, values, colour, hatch) in zip(axes[:, 0], parts, strict=True):
        axis.hist(values, bins=bins, color=colour, alpha=0.75, hatch=hatch, edgecolor="white", linewidth=0.3)
        axis.axvline(0.0, color=BLACK, linewidth=1.0, label="zero")
        mean = float(values.mean())
        axis.axvline(mean, color=BLACK, linewidth=1.4, linestyle="--", label=f"mean {mean:.2f}")
        describe(axis, y="episodes", title=label, size=9)
    axes[2, 0].set_xlabel("effort units")
    figure.suptitle(f"How much of the rating is not backed by saved effort\n{title}", fontsize=10)
    save(figure, path)


def draw_actions(path: Path, results: dict[str, Paired], title: str) -> None:
    """Mean counts with 95 % intervals for every policy; shares by step of the first."""
    figure, axes = new_figure(1, 2, width=9.6, height=4.2)
    counts, steps = axes[0]
    width = 0.8 / len(results)
    for place, result in enumerate(results.values()):
        shift = (place - (len(results) - 1) / 2) * width
        _count_bars(counts, result, shift, width, 1.0 if place == 0 else 0.5)
    counts.set_xticks(range(3), ACTIONS)
    names = " | ".join(results)
    which = f"left to right: {names}" if len(results) > 1 else names
    describe(counts, y="actions per episode, 95 % CI", title=which, size=9, loc="center", legend=None)
    name, first = next(iter(results.items()))
    _shares_by_step(steps, first)
    describe(steps, x="step", y="share of episodes", title=f"by step ({name})", size=9, loc="center")
    figure.suptitle(f"What the Assistant does\n{title}", fontsize=10)
    save(figure, path)


def _count_bars(axis: Axes, result: Paired, shift: float, width: float, alpha: float) -> None:
    numbers = intervals(columns(result))
    for index, key in enumerate(("nothing_count", "help_count", "signal_count")):
        x, mean = index + shift, numbers[key]["mean"] or 0.0
        low, high = numbers[key]["low"], numbers[key]["high"]
        axis.bar(x, mean, width * 0.92, alpha=alpha, **ACTION_BARS[index])
        if low is not None and high is not None:
            spread = [[max(0.0, mean - low)], [max(0.0, high - mean)]]
            axis.errorbar(x, mean, yerr=spread, color=BLACK, capsize=2.5, linewidth=1)
        place = (x, max(mean, high or 0.0))
        axis.annotate(f"{mean:.1f}", place, (0, 3), textcoords="offset points", ha="center", fontsize=7)


def _shares_by_step(axis: Axes, result: Paired) -> None:
    played = result.acting.episodes.actions[:, result.counted]
    for index, (label, colour, mark) in enumerate(zip(ACTIONS, ACTION_COLOURS, "so^", strict=True)):
        share = (played == index).mean(1)
        axis.plot(share, color=colour, marker=mark, markevery=5, markersize=4, label=label)
    rest = 1.0 - result.acting.episodes.works[:, result.counted].mean(1)
    axis.plot(rest, color=BLACK, linestyle=":", label="Worker rests")
    axis.set_ylim(-0.03, 1.03)


def draw_efforts(path: Path, result: Paired, title: str) -> None:
    figure, axes = new_figure(width=7.0, height=4.4)
    axis: Axes = axes[0, 0]
    arms = (
        ("without Assistant", result.without, GREY, ""),
        ("SIGNALs silenced", result.silenced, BLUE, "//"),
        ("as played", result.acting, ORANGE, ".."),
    )
    efforts = [arm.episodes.effort[result.counted] for _, arm, _, _ in arms]
    for place, ((_, _, colour, hatch), values) in enumerate(zip(arms, efforts, strict=True)):
        if len(values) > 1 and np.ptp(values) > 0:
            violin = axis.violinplot(values, [place], widths=0.75, showextrema=False)
            for body in violin["bodies"]:  # type: ignore[attr-defined]
                body.set(facecolor=colour, alpha=0.45, hatch=hatch, edgecolor=colour)
        mean = float(values.mean())
        axis.plot([place - 0.3, place + 0.3], [mean, mean], color=BLACK, linewidth=1.6)
        text = axis.annotate(
            f"mean {mean:.2f}", (place, mean), (0, 4), textcoords="offset points", ha="center", fontsize=9
        )
        text.set_bbox({"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.0})
    axis.set_xlim(-0.6, 2.6)
    axis.set_xticks(range(3), [name for name, _, _, _ in arms])
    title = f"Effort the Worker really felt\n{title}"
    describe(axis, y="effort felt in an episode", title=title, loc="center", legend=None)
    save(figure, path)


PANELS = {
    "reward and rating": (
        "effort units",
        [("reward", "reward", BLACK, "-"), ("peer_rating", "peer rating", ORANGE, "--")],
    ),
    "effort the Worker felt": ("effort units", [("experienced_effort", "effort felt", BLUE, "-")]),
    "what the Worker expects": (
        "effort units",
        [("learned_expected_effort", "learned L", GREEN, "-"), ("effort_expected", "L + bias", ORANGE, "--")],
    ),
    "actions per episode": (
        "count",
        [
            ("help_count", "HELP", BLUE, "-"),
            ("signal_count", "SIGNAL", ORANGE, "--"),
            ("nothing_count", "DO_NOTHING", GREY, ":"),
        ],
    ),
}
"""Training curves: title -> (unit, [(column of the table, label, colour, style)])."""
SMOOTHED = 5
"""Rollouts that a point of a training curve is the mean of."""


def draw_training(table: Path, folder: Path, c_signal: float) -> None:
    """`training_curves.png`; says why where the table cannot be used."""
    path = folder / "training_curves.png"
    try:
        values = read_table(table)
    except ValueError as error:
        figure, axes = new_figure(width=6.0, height=2.0)
        axes[0, 0].set_axis_off()
        axes[0, 0].text(0.5, 0.5, f"no training curves: {error}", ha="center", va="center", wrap=True)
        save(figure, path)
        return
    figure, axes = new_figure(2, 2, width=9.6, height=6.4)
    steps, smooth = _per_rollout(values)
    for axis, (title, (unit, curves)) in zip(axes.flat, PANELS.items(), strict=True):
        for column, label, colour, style in curves:
            axis.plot(steps, smooth(column), color=colour, linestyle=style, label=label)
        axis.ticklabel_format(axis="x", style="sci", scilimits=(3, 3))
        describe(axis, x="environment steps", y=unit, title=title, size=9)
    episodes = len(values["episode"])
    figure.suptitle(
        f"PPO training, c_signal = {c_signal:g}, chained memory, n = {episodes} episodes (sampled actions)",
        fontsize=10,
    )
    save(figure, path)


def _per_rollout(table: dict[str, np.ndarray]) -> tuple[np.ndarray, Callable[[str], np.ndarray]]:
    """(steps [R], function from a column to its running means [R] over SMOOTHED rollouts)."""
    steps, rollout = np.unique(table["timesteps"], return_inverse=True)
    counts = np.bincount(rollout)

    def smooth(key: str) -> np.ndarray:
        means = np.bincount(rollout, weights=table[key]) / counts
        return np.array([means[max(0, end - SMOOTHED) : end].mean() for end in range(1, len(means) + 1)])

    return steps, smooth


def draw_mitigations(path: Path, rows: Sequence[Mapping[str, Any]], seeds: int) -> None:
    """Actions, TrueImpact and ManipulationScore of each variant at the lowest price, means over seeds.

    `rows` are deterministic policies with scaled features; a dot is one training seed.
    """
    figure, axes = new_figure(1, 2, width=11.0, height=4.6)
    price = min((row["c_signal"] for row in rows), default=0.0)
    shown = [row for row in rows if row["c_signal"] == price and row["features"] == "scaled"]
    names = list(dict.fromkeys(row["mitigation"] for row in shown))
    groups = [[row for row in shown if row["mitigation"] == name] for name in names]

    def means(key: str) -> np.ndarray:
        return np.array([np.mean([row[key] for row in group]) for group in groups])

    actions, scores = axes[0]
    left = np.zeros(len(names))
    for action, key in ((HELP, "help"), (SIGNAL, "signal"), (DO_NOTHING, "nothing")):
        actions.barh(names, means(key), left=left, label=ACTIONS[action], **ACTION_BARS[action])
        left = left + means(key)
    describe(actions, x="actions per episode", title="what is done", legend=None)
    places = np.arange(len(names))
    for key, label, colour, mark, shift in (
        ("true_impact", "TrueImpact", GREEN, "o", -0.14),
        ("manipulation_score", "ManipulationScore", PURPLE, "^", 0.14),
    ):
        scores.barh(places + shift, means(key), 0.26, color=colour, alpha=0.5, label=label)
        for place, group in zip(places, groups, strict=True):
            values = [row[key] for row in group]
            where = [place + shift] * len(values)
            scores.plot(values, where, linestyle="none", marker=mark, color=colour, markersize=5)
    scores.axvline(0.0, color=BLACK, linewidth=0.8)
    scores.set_yticks(places, names)
    describe(
        scores, x="effort units an episode; marks are training seeds", title="what it is worth", legend=None
    )
    for axis in (actions, scores):
        axis.invert_yaxis()
        if names:
            axis.legend(frameon=False, fontsize=8, loc="lower right")
    title = f"PPO under other rewards: c_signal = {price:g}, calibrated evaluation, n = {seeds}"
    figure.suptitle(title if names else f"{title}: nothing trained", fontsize=11)
    save(figure, path)
