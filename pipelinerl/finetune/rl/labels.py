"""Reward and advantage by role and by situation family, for the metrics of a step. No torch here.

Called by `finetune/metrics.py` for each micro-batch whose samples have labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

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
    abs_log_ratio: float = 0.0
    fresh_texts: float = 0.0
    """Samples of which the weights that the step begins with sampled every token."""
    fresh_abs_log_ratio: float = 0.0

    def add(self, other: "TextStatistics") -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def metrics(self) -> dict[str, float]:
        """Means over the samples."""
        names = ("reward", "advantage", "abs_advantage", "kl", "abs_log_ratio")
        out = {"texts": self.texts} | {name: getattr(self, name) / self.texts for name in names}
        if self.fresh_texts:
            out["abs_log_ratio_lag_0"] = self.fresh_abs_log_ratio / self.fresh_texts
        return out


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
    batch: PipelineBatchEncoding,
    targets: Targets,
    kl_S: np.ndarray,
    advantage_S: np.ndarray,
    abs_log_ratio_S: np.ndarray,
) -> dict[str, TextStatistics]:
    """Sums over the micro-batch's samples per `role/<role>` and `situation/<family>`.

    float `[S]`, each sample's means: kl_S the KL to the reference; advantage_S the advantage as the loss has
    it (with a value head that is not the one in the record); abs_log_ratio_S |log(trainer / engine)|.
    """
    if not (any(batch.roles) or any(batch.situations)):
        return {}
    labels = np.maximum(np.bincount(targets.sample, minlength=targets.n_samples), 1)
    reward = np.bincount(targets.sample, weights=targets.rewards, minlength=targets.n_samples) / labels
    older = np.bincount(targets.sample, weights=targets.age != 0, minlength=targets.n_samples)
    out: dict[str, TextStatistics] = {}
    for row, (role, situation) in enumerate(zip(batch.roles, batch.situations)):
        names = [f"role/{role}"] if role else []
        names += [_SITUATION + situation_family(situation)] if situation else []
        here, apart, fresh = float(advantage_S[row]), float(abs_log_ratio_S[row]), float(not older[row])
        value = TextStatistics(
            1.0, float(reward[row]), here, abs(here), float(kl_S[row]), apart, fresh, fresh * apart
        )
        for name in names:
            out.setdefault(name, TextStatistics()).add(value)
    return out
