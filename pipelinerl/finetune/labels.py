"""Reward and advantage by role and by situation family, for the metrics of a step. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelinerl.finetune.targets import Targets
from pipelinerl.finetune.types import PipelineBatchEncoding


@dataclass(slots=True)
class TextStatistics:
    """Sums over texts of one label (a role, a situation family): texts, reward, advantage, |advantage|."""

    texts: float = 0.0
    reward: float = 0.0
    advantage: float = 0.0
    abs_advantage: float = 0.0

    def add(self, other: TextStatistics) -> None:
        self.texts += other.texts
        self.reward += other.reward
        self.advantage += other.advantage
        self.abs_advantage += other.abs_advantage


def situation_family(situation: str) -> str:
    """A situation without the colon-separated segments that hold a digit: `hop:3:plan` is `hop:plan`."""
    parts = [part for part in situation.split(":") if not any(c.isdigit() for c in part)]
    return ":".join(parts) or "other"


def label_statistics(batch: PipelineBatchEncoding, targets: Targets) -> dict[str, TextStatistics]:
    """Sums over the micro-batch's texts per `role/<role>` and `situation/<family>`."""
    if not (any(batch.roles) or any(batch.situations)):
        return {}
    labels = np.maximum(np.bincount(targets.text, minlength=targets.n_texts), 1)
    reward = np.bincount(targets.text, weights=targets.rewards, minlength=targets.n_texts) / labels
    advantage = np.bincount(targets.text, weights=targets.advantages, minlength=targets.n_texts) / labels
    out: dict[str, TextStatistics] = {}
    for row in range(targets.n_texts):
        names = []
        if row < len(batch.roles) and batch.roles[row]:
            names.append(f"role/{batch.roles[row]}")
        if row < len(batch.situations) and (situation := batch.situations[row]):
            names.append(f"situation/{situation_family(situation)}")
        value = TextStatistics(1.0, float(reward[row]), float(advantage[row]), abs(float(advantage[row])))
        for name in names:
            out.setdefault(name, TextStatistics()).add(value)
    return out
