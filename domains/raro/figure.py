"""One figure per run: critic accuracy, ties, position, failures, replay age, rewards, loss mass."""

from functools import partial
from pathlib import Path
from typing import Any

from domains.raro.metrics import PREFIX
from pipelinerl.observe.figure_style import TEXTS, WIDTH, save
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
    """Write `report/raro.png`, light and dark; panels without data stay empty."""
    save(output_dir / "report" / "raro.png", partial(_draw, output_dir, actor))


def _draw(output_dir: Path, actor: Records, figure: Any) -> None:
    figure.set_size_inches(1.6 * WIDTH, 12)
    *panels, held_out, mass = figure.subplots(4, 2).flat
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
    for panel in (*panels, held_out, mass):
        panel.set_xlabel(TEXTS)
        if "age" not in panel.get_title(loc="left") and panel is not mass:
            panel.set_ylim(-0.03, 1.03)
        if panel.get_legend_handles_labels()[0]:
            panel.legend()
