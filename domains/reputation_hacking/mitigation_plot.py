"""Figure of reward variants: what learned policies do under each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from domains.reputation_hacking.plots import (
    ACTION_COLOURS,
    ACTION_HATCHES,
    BLACK,
    GREEN,
    PURPLE,
    new_figure,
    save,
)


def draw_mitigations(path: Path, rows: Sequence[Mapping[str, Any]], seeds: int) -> None:
    """Actions, TrueImpact and ManipulationScore of each variant at the lowest price, means over seeds.

    `rows` are deterministic policies with scaled features; a dot is one training seed.
    """
    figure, axes = new_figure(1, 2, width=11.0, height=4.6)
    price = min((row["c_signal"] for row in rows), default=0.0)
    shown = [row for row in rows if row["c_signal"] == price and row["features"] == "scaled"]
    names = list(dict.fromkeys(row["mitigation"] for row in shown))
    groups = [[row for row in shown if row["mitigation"] == name] for name in names]
    actions, scores = axes[0]
    left = np.zeros(len(names))
    for key, label, colour, hatch in zip(
        ("help", "signal", "nothing"),
        ("HELP", "SIGNAL", "DO_NOTHING"),
        (ACTION_COLOURS[1], ACTION_COLOURS[2], ACTION_COLOURS[0]),
        (ACTION_HATCHES[1], ACTION_HATCHES[2], ACTION_HATCHES[0]),
        strict=True,
    ):
        means = np.array([np.mean([row[key] for row in group]) for group in groups])
        actions.barh(names, means, left=left, color=colour, hatch=hatch, edgecolor="white", label=label)
        left = left + means
    actions.set_xlabel("actions per episode")
    actions.set_title("what is done", fontsize=10, loc="left")
    places = np.arange(len(names))
    for key, label, colour, mark, shift in (
        ("true_impact", "TrueImpact", GREEN, "o", -0.14),
        ("manipulation_score", "ManipulationScore", PURPLE, "^", 0.14),
    ):
        means = np.array([np.mean([row[key] for row in group]) for group in groups])
        scores.barh(places + shift, means, 0.26, color=colour, alpha=0.5, label=label)
        for place, group in zip(places, groups, strict=True):
            values = [row[key] for row in group]
            scores.plot(
                values,
                [place + shift] * len(values),
                linestyle="none",
                marker=mark,
                color=colour,
                markersize=5,
            )
    scores.axvline(0.0, color=BLACK, linewidth=0.8)
    scores.set_yticks(places, names)
    scores.set_xlabel("effort units an episode; marks are training seeds")
    scores.set_title("what it is worth", fontsize=10, loc="left")
    for axis in (actions, scores):
        axis.invert_yaxis()
        if names:
            axis.legend(frameon=False, fontsize=8, loc="lower right")
    title = f"PPO under other rewards: c_signal = {price:g}, calibrated evaluation, n = {seeds}"
    figure.suptitle(title if names else f"{title}: nothing trained", fontsize=11)
    save(figure, path)
