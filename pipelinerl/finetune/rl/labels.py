"""Reward and advantage by role and by situation family, for the metrics of a step. No torch here.

Called by `finetune/metrics.py` for each micro-batch whose samples have labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from pipelinerl.finetune.rl.batch import PipelineBatchEncoding
from pipelinerl.finetune.rl.targets import Targets

MAX_FAMILIES = 32
_SITUATION = "situation/"


@dataclass(slots=True)
class TextStatistics:
    """Sums over samples of one label (a role, a situation family); each sample counts with its mean."""

    texts: float = 0.0
    reward: float = 0.0
    advantage: float = 0.0
    abs_advantage: float = 0.0
    kl: float = 0.0

    def add(self, other: "TextStatistics") -> None:
        self.texts += other.texts
        self.reward += other.reward
        self.advantage += other.advantage
        self.abs_advantage += other.abs_advantage
        self.kl += other.kl


def situation_family(situation: str) -> str:
    """A situation without the colon-separated segments that hold a digit: `hop:3:plan` is `hop:plan`."""
    parts = [part for part in situation.split(":") if not any(c.isdigit() for c in part)]
    return ":".join(parts) or "other"


def capped_families(labels: Mapping[str, TextStatistics]) -> dict[str, TextStatistics]:
    """At most MAX_FAMILIES situation families, those with the most samples; the rest together as `other`."""
    families = sorted(
        (name for name in labels if name.startswith(_SITUATION)), key=lambda n: -labels[n].texts
    )
    rest = families[MAX_FAMILIES:]
    out = {name: values for name, values in labels.items() if name not in rest}
    if rest:
        other = replace(out.get(_SITUATION + "other", TextStatistics()))
        for name in rest:
            other.add(labels[name])
        out[_SITUATION + "other"] = other
    return out


def label_statistics(
    batch: PipelineBatchEncoding, targets: Targets, kl_S: np.ndarray, advantage_S: np.ndarray
) -> dict[str, TextStatistics]:
    """Sums over the micro-batch's samples per `role/<role>` and `situation/<family>`.

    kl_S, advantage_S float `[S]`: each sample's mean KL to the reference and mean advantage, as the loss has
    it (with a value head that is not the advantage in the record).
    """
    if not (any(batch.roles) or any(batch.situations)):
        return {}
    labels = np.maximum(np.bincount(targets.sample, minlength=targets.n_samples), 1)
    reward = np.bincount(targets.sample, weights=targets.rewards, minlength=targets.n_samples) / labels
    out: dict[str, TextStatistics] = {}
    for row, (role, situation) in enumerate(zip(batch.roles, batch.situations)):
        names = [f"role/{role}"] if role else []
        names += [_SITUATION + situation_family(situation)] if situation else []
        here = float(advantage_S[row])
        value = TextStatistics(1.0, float(reward[row]), here, abs(here), float(kl_S[row]))
        for name in names:
            out.setdefault(name, TextStatistics()).add(value)
    return out
