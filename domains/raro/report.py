"""The domain's part of the report: how the game went, the method's sanity checks, warnings, one figure."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from domains.raro.metrics import PREFIX
from domains.raro.runtime import FOLDER, WARNINGS
from pipelinerl.base.line_file import read_lines
from pipelinerl.domain import ReportSection
from pipelinerl.observe.history import Series, read_metrics, series

Records = list[dict[str, Any]]

ROWS = {
    "policy reward": "policy_reward",
    "answerless": "answerless_rate",
    "critic accuracy, fresh": "fresh/critic_accuracy",
    "critic accuracy, replay": "replay/critic_accuracy",
    "ties, fresh": "fresh/tie_rate",
    "ties, replay": "replay/tie_rate",
    "policy taken for expert, fresh": "fresh/policy_win_rate",
    "answer 1 among commitments, fresh": "fresh/position1_rate",
    "unreadable verdicts, fresh": "fresh/parse_fail_rate",
    "identical answers": "identical_rate",
    "longer answer is the policy's": "length_rule_accuracy",
    "critic groups without advantage": "critic_zero_advantage_groups",
    "age of replayed pairs (texts)": "replay_age",
    "rows in the buffer": "replay_size",
}
FIRST_LABELS = 400


def game(records: Records, name: str) -> Series:
    """One of the game's metrics over training."""
    return series(records, f"actor/{PREFIX}{name}_mean")


def tenths(data: Series) -> list[float]:
    """Means over the tenths of a run, fewer where it has fewer records; none without data."""
    return [float(piece.mean()) for piece in np.array_split(data.y, min(10, len(data)) or 1) if len(piece)]


def sections(output_dir: Path) -> list[ReportSection]:
    """The table of the game with checks and warnings; empty for a run without training rollouts."""
    records = read_metrics(output_dir, "actor")
    rows: list[tuple[str, ...]] = [("the game", "first tenth", "last tenth")]
    for label, name in ROWS.items():
        if means := tenths(game(records, name)):
            rows.append((label, f"{means[0]:.3f}", f"{means[-1]:.3f}"))
    if len(rows) == 1:
        return []
    from domains.raro.figure import draw

    draw(output_dir, records)
    text = "\n".join([*checks(records), *warnings(output_dir)])
    return [ReportSection(title="RARO", rows=rows, text=text)]


def checks(records: Records) -> list[str]:
    """The method's sanity checks as lines; they report and assert nothing."""
    lines = []
    if (accuracy := first_accuracy(records)) is not None:
        lines.append(
            f"critic accuracy over the first {FIRST_LABELS} committed fresh labels: {accuracy:.2f} "
            "(0.40 to 0.60 from a critic without skill)"
        )
    if reward := tenths(game(records, "policy_reward")):
        lines.append(f"policy reward, first and last tenth: {reward[0]:.3f}, {reward[-1]:.3f} (should rise)")
    ties = tenths(game(records, "fresh/tie_rate"))
    if len(ties) == 10:
        change = abs(ties[-1] - ties[-2])
        lines.append(f"tie rate changed by {change:.3f} between the last two tenths (stable below 0.05)")
    return lines


def first_accuracy(records: Records, labels: int = FIRST_LABELS) -> float | None:
    """Critic accuracy over the records that hold the first `labels` committed fresh labels; None if fewer."""
    right = seen = 0.0
    for record in records:
        accuracy = record.get(f"actor/{PREFIX}fresh/critic_accuracy_mean")
        per_rollout = record.get(f"actor/{PREFIX}fresh/committed_mean")
        if accuracy is None or per_rollout is None:
            continue
        committed = per_rollout * record.get("actor/rollouts_done", 0.0)
        right, seen = right + accuracy * committed, seen + committed
        if seen >= labels:
            return float(right / seen)
    return None


def _warning(line: bytes) -> tuple[str, str]:
    found = json.loads(line)
    if not isinstance(found, dict) or not {"kind", "text"} <= found.keys():
        raise ValueError("no kind and text")
    return str(found["kind"]), str(found["text"])


def warnings(output_dir: Path) -> list[str]:
    """What the workers warned of, the newest of each kind."""
    newest = dict(read_lines(output_dir / FOLDER / WARNINGS, _warning))
    return [f"warning: {text}" for text in newest.values()]
