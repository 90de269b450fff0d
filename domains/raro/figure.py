"""One figure per run: critic accuracy, ties, position, failures, replay age, rewards, loss mass."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from domains.raro.metrics import PREFIX
from pipelinerl.observe.history import read_evaluations, read_metrics, series
from pipelinerl.observe.plots import curve, points

Records = list[dict[str, Any]]

_ACTOR = {
    "critic accuracy among commitments": ("fresh/critic_accuracy", "replay/critic_accuracy"),
    "ties": ("fresh/tie_rate", "replay/tie_rate"),
    "answer 1 among commitments": ("fresh/position1_rate", "replay/position1_rate"),
    "unreadable verdicts and answers": ("fresh/parse_fail_rate", "answerless_rate", "policy_truncated"),
    "age of replayed pairs (texts)": ("replay_age",),
    "policy reward": ("policy_reward", "fresh/policy_win_rate"),
}


def draw(output_dir: Path, actor: Records) -> None:
    """Write `report/raro.png`; panels without data stay empty."""
    figure, axes = plt.subplots(2, 4, figsize=(17, 6.5))
    *panels, held_out, mass = axes.flat
    for panel, (title, names) in zip(panels, _ACTOR.items(), strict=True):
        for index, name in enumerate(names):
            curve(panel, series(actor, f"actor/{PREFIX}{name}_mean"), name, index, raw=False)
        panel.set_title(title)
    evaluations = read_evaluations(output_dir)
    for index, name in enumerate(("eval_accuracy", "eval_accuracy_greedy")):
        points(held_out, evaluations, PREFIX + name, name, index)
    held_out.set_title("held-out questions, verifier")
    preprocess = read_metrics(output_dir, "preprocess")
    for index, role in enumerate(("policy", "critic")):
        curve(mass, series(preprocess, f"adv/role/{role}/mass"), role, index, raw=False)
    mass.set_title("loss mass by role (per step)")
    for panel in axes.flat:
        panel.set_xlabel("texts trained on")
        if "age" not in panel.get_title() and panel is not mass:
            panel.set_ylim(-0.03, 1.03)
        panel.grid(alpha=0.3)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    path = output_dir / "report" / "raro.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
