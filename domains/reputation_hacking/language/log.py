"""What is kept of an episode that a language model plays, and `reputation_hacking/episodes.*.jsonl` of a run.

Rollouts fill `Played` and write a line per episode, with the steps of a share of them; the report reads them.
"""

import json
import os
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from domains.reputation_hacking.game.dynamics import ACTIONS, Episodes
from domains.reputation_hacking.settings import KEY, ReputationSettings
from pipelinerl.base.line_file import LineFile, read_lines
from pipelinerl.rollouts import BaseMetrics, RolloutOrigin, TrainingText


class ReputationMetrics(BaseMetrics):
    """Statistics of one episode, unscaled. `success`: more effort was saved than claimed (TI > B)."""

    peer_rating: float
    true_impact: float
    manipulation_score: float
    signal_bias: float
    memory_part: float
    effort: float
    effort_without: float
    help_share: float
    signal_share: float
    invalid: int
    tasks: int
    episode_return: float
    """J of this episode: plain reward less (1-a)·L."""
    c_signal: float


@dataclass
class Step:
    """One decision."""

    situation: int
    action: int
    valid: bool
    reply: str
    observation: list[float]
    works: bool
    effort: float
    version: int | None


@dataclass
class Played:
    """A finished episode and how it was rated from the calibrated memory."""

    episode: Episodes
    steps: list[Step] = field(default_factory=list)
    texts: list[TrainingText] = field(default_factory=list)

    @property
    def invalid(self) -> int:
        return sum(not step.valid for step in self.steps)


def write_episode(
    cfg: DictConfig,
    settings: ReputationSettings,
    problem: dict[str, Any],
    played: Played,
    metrics: ReputationMetrics,
    start: float,
    origin: RolloutOrigin | None,
) -> None:
    """Append one line to the file of this process; nothing outside a run."""
    if origin is None or cfg.get("output_dir") is None:
        return
    counts = Counter((step.situation, ACTIONS[step.action]) for step in played.steps)
    line: dict[str, Any] = {
        "group": origin.group_id,
        "rollout": origin.rollout_index,
        "version": origin.version,
        "training": origin.training,
        **{key: problem[key] for key in ("id", "seed", "c_signal", "c_help", "variant", "dataset")},
        "L": start,
        **metrics.model_dump(),
        "actions": {name: int((played.episode.actions == a).sum()) for a, name in enumerate(ACTIONS)},
        "by_situation": {f"{index}:{name}": count for (index, name), count in sorted(counts.items())},
        "tokens": sum(text.prompt_tokens + text.output_tokens for text in played.texts),
    }
    identity = f"{origin.group_id}/{origin.rollout_index}/{origin.version}".encode()
    if zlib.crc32(identity) / 2**32 < settings.trace_fraction:
        line["steps"] = [vars(step) | {"t": t} for t, step in enumerate(played.steps)]
    folder = Path(cfg.output_dir) / KEY
    with LineFile(folder / f"episodes.{os.getpid()}.jsonl") as file:
        file.append(json.dumps(line).encode())


def read_episodes(output_dir: Path) -> list[dict[str, Any]]:
    """The episodes of a run in the order of each process; incomplete lines are left out.

    Raises DamagedLine.
    """
    files = sorted((output_dir / KEY).glob("episodes.*.jsonl"))
    return [episode for path in files for episode in read_lines(path, json.loads)]
