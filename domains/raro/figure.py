"""One figure per run: critic accuracy, ties, position, failures, replay age, rewards, loss mass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from domains.raro.metrics import PREFIX
from pipelinerl.observe.history import Series, read_evaluations, read_metrics, series
from pipelinerl.observe.intervals import known, mean_interval
from pipelinerl.observe.plots import COLOURS, DASHES, smooth

Records = list[dict[str, Any]]

_ACTOR = {
    "critic accuracy among commitments": ("fresh/critic_accuracy", "replay/critic_accuracy"),
    "ties": ("fresh/tie_rate", "replay/tie_rate"),
    "answer 1 among commitments": ("fresh/position1_rate", "replay/position1_rate"),
    "unreadable verdicts and answers": ("fresh/parse_fail_rate", "answerless_rate", "policy_truncated"),
    "age of replayed pairs (texts)": ("replay_age",),
    "policy reward": ("policy_reward", "fresh/policy_win_rate"),
}


def draw(output_dir: Path, actor: Records) -> Path:
    """Write `report/raro.png`; panels without data stay empty."""
    path = output_dir / "report" / "raro.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(2, 4, figsize=(17, 6.5))
    panels = list(axes.flat)
    for panel, (title, names) in zip(panels, _ACTOR.items()):
        for index, name in enumerate(names):
            _line(panel, series(actor, f"actor/{PREFIX}{name}_mean"), name, index)
        panel.set(title=title, xlabel="texts trained on")
        if "age" not in title:
            panel.set_ylim(-0.03, 1.03)
    _verifier(panels[6], output_dir)
    _mass(panels[7], read_metrics(output_dir, "preprocess"))
    for panel in panels:
        panel.grid(alpha=0.3)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _line(axes: Any, data: Series, label: str, index: int) -> None:
    if len(data):
        y = smooth(data.y, max(1, len(data) // 12))
        axes.plot(data.x, y, color=COLOURS[index], linestyle=DASHES[index], label=label)


def _verifier(axes: Any, output_dir: Path) -> None:
    evaluations = read_evaluations(output_dir)
    for index, name in enumerate(("eval_accuracy", "eval_accuracy_greedy")):
        points = [
            (e.version, mean_interval(e.values[PREFIX + name]))
            for e in evaluations
            if PREFIX + name in e.values and len(known(e.values[PREFIX + name]))
        ]
        if points:
            axes.errorbar(
                [version for version, _ in points],
                [found.mean for _, found in points],
                yerr=[[i.mean - i.low for _, i in points], [i.high - i.mean for _, i in points]],
                color=COLOURS[index],
                linestyle=DASHES[index],
                marker="o",
                capsize=3,
                label=name,
            )
    axes.set(title="held-out questions, verifier", xlabel="texts trained on", ylim=(-0.03, 1.03))


def _mass(axes: Any, records: Records) -> None:
    for index, role in enumerate(("policy", "critic")):
        _line(axes, series(records, f"adv/role/{role}/mass"), role, index)
    axes.set(title="loss mass by role (per step)", xlabel="texts trained on")
