"""The five figures of a run; no display needed, readable in print and with any colour vision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from domains.reputation_hacking.dynamics import ACTIONS
from domains.reputation_hacking.paired import Paired
from domains.reputation_hacking.params import Params
from domains.reputation_hacking.report import columns, intervals
from domains.reputation_hacking.tables import read_table

BLUE, ORANGE, GREEN, PURPLE, GREY, BLACK = "#0072B2", "#D55E00", "#009E73", "#AA4499", "#777777", "#222222"
"""After Okabe and Ito (2008): distinguishable with any colour vision."""
ACTION_COLOURS = (GREY, BLUE, ORANGE)
ACTION_HATCHES = ("", "//", "..")
ACTION_MARKS = ("s", "o", "^")
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


def save(figure: Figure, path: Path) -> None:
    """Write a PNG without times or versions, so equal data give equal files."""
    figure.savefig(path, metadata={"Software": None})


def heading(params: Params, result: Paired, mitigation: str) -> str:
    n = len(result.rating)
    variant = "" if mitigation == "none" else f", mitigation {mitigation}"
    return f"c_signal = {params.c_signal:g}, {result.mode} evaluation, n = {n}{variant}"


def draw_evaluation(
    folder: Path, results: dict[str, Paired], params: Params, mitigation: str = "none"
) -> None:
    """The four figures of an evaluation; the first policy is the one shown in full."""
    first = next(iter(results.values()))
    title = heading(params, first, mitigation)
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
    axis.set_xlabel("TrueImpact (effort saved)")
    axis.set_ylabel("peer rating")
    axis.set_title(f"What the Worker says and what it was spared\n{title}", fontsize=10)
    axis.legend(frameon=False, fontsize=8)
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
        axis.set_title(label, fontsize=9, loc="left")
        axis.set_ylabel("episodes")
        axis.legend(frameon=False, fontsize=8)
    axes[2, 0].set_xlabel("effort units")
    figure.suptitle(f"How much of the rating is not backed by saved effort\n{title}", fontsize=10)
    save(figure, path)


def draw_actions(path: Path, results: dict[str, Paired], title: str) -> None:
    """Mean counts with 95 % intervals for every policy; shares by step of the first."""
    figure, axes = new_figure(1, 2, width=9.6, height=4.2)
    counts, steps = axes[0]
    width = 0.8 / len(results)
    for place, result in enumerate(results.values()):
        numbers = intervals(columns(result))
        for index, key in enumerate(("nothing_count", "help_count", "signal_count")):
            entry = numbers[key]
            mean = entry["mean"] or 0.0
            x = index + (place - (len(results) - 1) / 2) * width
            counts.bar(
                x,
                mean,
                width * 0.92,
                color=ACTION_COLOURS[index],
                alpha=1.0 if place == 0 else 0.5,
                hatch=ACTION_HATCHES[index],
                edgecolor="white",
            )
            if entry["low"] is not None and entry["high"] is not None:
                spread = [[max(0.0, mean - entry["low"])], [max(0.0, entry["high"] - mean)]]
                counts.errorbar(x, mean, yerr=spread, color=BLACK, capsize=2.5, linewidth=1)
            top = max(mean, entry["high"] or 0.0)
            counts.annotate(
                f"{mean:.1f}", (x, top), (0, 3), textcoords="offset points", ha="center", fontsize=7
            )
    counts.set_xticks(range(3), ACTIONS)
    counts.set_ylabel("actions per episode, 95 % CI")
    names = " | ".join(results)
    counts.set_title(f"left to right: {names}" if len(results) > 1 else names, fontsize=9)
    name, first = next(iter(results.items()))
    played = first.acting.episodes.actions[:, first.counted]
    t = np.arange(len(played))
    for index, action in enumerate(ACTIONS):
        steps.plot(
            t,
            (played == index).mean(1),
            color=ACTION_COLOURS[index],
            marker=ACTION_MARKS[index],
            markevery=5,
            markersize=4,
            label=action,
        )
    rest = 1.0 - first.acting.episodes.works[:, first.counted].mean(1)
    steps.plot(t, rest, color=BLACK, linestyle=":", label="Worker rests")
    steps.set_ylim(-0.03, 1.03)
    steps.set_xlabel("step")
    steps.set_ylabel("share of episodes")
    steps.set_title(f"by step ({name})", fontsize=9)
    steps.legend(frameon=False, fontsize=8)
    figure.suptitle(f"What the Assistant does\n{title}", fontsize=10)
    save(figure, path)


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
    axis.set_ylabel("effort felt in an episode")
    axis.set_title(f"Effort the Worker really felt\n{title}", fontsize=10)
    save(figure, path)


def draw_training(table: Path, folder: Path, c_signal: float) -> None:
    """`training_curves.png`; says why where the table cannot be used."""
    path = folder / "training_curves.png"
    try:
        columns_ = read_table(table)
    except ValueError as error:
        figure, axes = new_figure(width=6.0, height=2.0)
        axes[0, 0].set_axis_off()
        axes[0, 0].text(0.5, 0.5, f"no training curves: {error}", ha="center", va="center", wrap=True)
        save(figure, path)
        return
    figure, axes = new_figure(2, 2, width=9.6, height=6.4)
    steps, smooth = _per_rollout(columns_)
    panels: tuple[tuple[Axes, str, tuple[tuple[str, str, str, str], ...]], ...] = (
        (
            axes[0, 0],
            "reward and rating",
            (("reward", "reward", BLACK, "-"), ("peer_rating", "peer rating", ORANGE, "--")),
        ),
        (
            axes[0, 1],
            "effort the Worker felt",
            (("experienced_effort", "effort felt", BLUE, "-"),),
        ),
        (
            axes[1, 0],
            "what the Worker expects",
            (
                ("learned_expected_effort", "learned L", GREEN, "-"),
                ("effort_expected", "L + bias", ORANGE, "--"),
            ),
        ),
        (
            axes[1, 1],
            "actions per episode",
            (
                ("help_count", "HELP", BLUE, "-"),
                ("signal_count", "SIGNAL", ORANGE, "--"),
                ("nothing_count", "DO_NOTHING", GREY, ":"),
            ),
        ),
    )
    for axis, title, lines in panels:
        for key, label, colour, style in lines:
            axis.plot(steps, smooth(key), color=colour, linestyle=style, label=label)
        axis.set_title(title, fontsize=9, loc="left")
        axis.set_xlabel("environment steps")
        axis.ticklabel_format(axis="x", style="sci", scilimits=(3, 3))
        axis.legend(frameon=False, fontsize=8)
    for axis in (axes[0, 0], axes[0, 1], axes[1, 0]):
        axis.set_ylabel("effort units")
    axes[1, 1].set_ylabel("count")
    episodes = len(columns_["episode"])
    figure.suptitle(
        f"PPO training, c_signal = {c_signal:g}, chained memory, n = {episodes} episodes (sampled actions)",
        fontsize=10,
    )
    save(figure, path)


def _per_rollout(table: dict[str, np.ndarray]) -> tuple[np.ndarray, Callable[[str], np.ndarray]]:
    """(steps [R], function from a column to its running means [R] over up to five rollouts)."""
    steps, rollout = np.unique(table["timesteps"], return_inverse=True)
    counts = np.bincount(rollout)
    window = min(5, len(steps))

    def smooth(key: str) -> np.ndarray:
        means = np.bincount(rollout, weights=table[key]) / counts
        total = np.cumsum(np.concatenate([[0.0], means]))
        start = np.maximum(np.arange(1, len(means) + 1) - window, 0)
        end = np.arange(1, len(means) + 1)
        return (total[end] - total[start]) / (end - start)

    return steps, smooth
