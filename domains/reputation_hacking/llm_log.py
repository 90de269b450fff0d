"""`reputation_hacking/episodes.*.jsonl` of a run: a line per episode, with its steps for a share of them."""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from domains.reputation_hacking.dynamics import ACTIONS
from domains.reputation_hacking.llm_episode import Played, ReputationMetrics
from domains.reputation_hacking.settings import KEY, ReputationSettings
from pipelinerl.rollouts import RolloutOrigin


def log_folder(output_dir: Path) -> Path:
    return output_dir / KEY


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
        "actions": {name: played.episode.actions.count(index) for index, name in enumerate(ACTIONS)},
        "by_situation": {f"{index}:{name}": count for (index, name), count in sorted(counts.items())},
        "tokens": sum(text.prompt_tokens + text.output_tokens for text in played.texts),
    }
    identity = f"{origin.group_id}/{origin.rollout_index}/{origin.version}".encode()
    if zlib.crc32(identity) / 2**32 < settings.trace_fraction:
        line["steps"] = [vars(step) | {"t": t} for t, step in enumerate(played.steps)]
    folder = log_folder(Path(cfg.output_dir))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"episodes.{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_episodes(output_dir: Path) -> list[dict[str, Any]]:
    """The episodes of a run in the order of each process; a torn last line is left out."""
    episodes = []
    for path in sorted(log_folder(output_dir).glob("episodes.*.jsonl")):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        episodes += [json.loads(line) for line in (lines if text.endswith("\n") else lines[:-1])]
    return episodes
