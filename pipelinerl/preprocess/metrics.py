"""`preprocessor/*` and `adv/*`: sums between two records, each metric with its reducer in one place."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pipelinerl.finetune.labels import situation_family
from pipelinerl.finetune.rl.text_table import NONE
from pipelinerl.preprocess.chunk import ChunkResult

ZERO_ADVANTAGE = 1e-6
MAX_FAMILIES = 32
OTHER_FAMILY = "other"


@dataclass(slots=True)
class _Family:
    count: float = 0.0
    advantage: float = 0.0
    abs_advantage: float = 0.0
    reward: float = 0.0


@dataclass(slots=True)
class AdvantageMetrics:
    """Sums of which `summary` forms ratios; a ratio with an empty denominator is absent."""

    buckets: float = 0.0
    singletons: float = 0.0
    rows: float = 0.0
    texts: float = 0.0
    zero_texts: float = 0.0
    rollouts: float = 0.0
    filtered_groups: float = 0.0
    baseline_only: float = 0.0
    padding_rows: float = 0.0
    split_rollouts: float = 0.0
    scale_sum: float = 0.0
    scaled_texts: float = 0.0
    families: dict[str, _Family] = field(default_factory=dict)
    roles: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add_chunk(self, chunk: ChunkResult) -> None:
        """Count a processed chunk."""
        if chunk.table is None or chunk.advantages is None:
            return
        table, advantages = chunk.table, chunk.advantages
        real = advantages.bucket_texts > 0
        self.buckets += float(real.sum())
        self.singletons += float((advantages.bucket_rows[real] == 1).sum())
        self.rows += float(advantages.bucket_rows[real].sum())
        self.texts += len(table)
        self.zero_texts += float((np.abs(advantages.advantage) <= ZERO_ADVANTAGE).sum())
        self.rollouts += len(np.unique(table.rollout_codes()))
        self.padding_rows += advantages.padding_rows
        self.filtered_groups += chunk.filtered_groups
        self.baseline_only += sum(reason == "baseline_only" for _, reason in chunk.dropped)
        for code, situation in enumerate(table.situation_names):
            rows = table.situation == code
            if rows.any():
                self._add_family(situation_family(situation), advantages.advantage[rows], table.reward[rows])
        unlabelled = table.situation == NONE
        if table.situation_names and unlabelled.any():
            self._add_family("none", advantages.advantage[unlabelled], table.reward[unlabelled])

    def add_step(self, scales: np.ndarray, split_rollouts: int, roles: Mapping[str, float]) -> None:
        """Count an optimizer step: its loss weights float `[B]` and what `apply_scales` said."""
        self.scale_sum += float(scales.sum())
        self.scaled_texts += len(scales)
        self.split_rollouts += split_rollouts
        for name, value in roles.items():
            self.roles[name].append(value)

    def _add_family(self, name: str, advantage: np.ndarray, reward: np.ndarray) -> None:
        if name not in self.families and len(self.families) >= MAX_FAMILIES:
            name = OTHER_FAMILY
        family = self.families.setdefault(name, _Family())
        family.count += len(advantage)
        family.advantage += float(advantage.sum())
        family.abs_advantage += float(np.abs(advantage).sum())
        family.reward += float(reward.sum())

    def summary(self) -> dict[str, float]:
        """Metrics since the start of this object; never NaN."""
        ratios = {
            "frac_singleton_buckets": (self.singletons, self.buckets),
            "mean_bucket_size": (self.rows, self.buckets),
            "mean_bucket_size_real": (self.texts, self.buckets),
            "frac_zero_texts": (self.zero_texts, self.texts),
            "texts_per_rollout": (self.texts, self.rollouts),
            "scale_mean": (self.scale_sum, self.scaled_texts),
        }
        out = {f"adv/{name}": above / below for name, (above, below) in ratios.items() if below}
        for name in ("filtered_groups", "padding_rows", "split_rollouts"):
            out[f"adv/{name}"] = getattr(self, name)
        out["adv/baseline_only_texts"] = self.baseline_only
        for name, family in self.families.items():
            out[f"adv/situation/{name}/mean"] = family.advantage / family.count
            out[f"adv/situation/{name}/abs_mean"] = family.abs_advantage / family.count
            out[f"adv/situation/{name}/reward_mean"] = family.reward / family.count
            out[f"adv/situation/{name}/count"] = family.count
        for name, values in self.roles.items():
            mean = name.endswith("/mass")
            out[name] = sum(values) / len(values) if mean else sum(values)
        return out


@dataclass(slots=True)
class PreprocessMetrics:
    """Everything preprocess reports; `record` returns what happened since the last call."""

    advantages: AdvantageMetrics = field(default_factory=AdvantageMetrics)
    started: float = field(default_factory=time.monotonic)
    texts: int = 0
    tokens: int = 0
    fill: list[float] = field(default_factory=list)

    def published(self, texts: int, tokens: int, fill: float) -> None:
        """Count a written step: texts, tokens, and tokens over the room of its rows."""
        self.texts += texts
        self.tokens += tokens
        self.fill.append(fill)

    def record(self, gauges: Mapping[str, float]) -> dict[str, float]:
        seconds = max(time.monotonic() - self.started, 1e-9)
        out = {f"preprocessor/{name}": float(value) for name, value in gauges.items()}
        out["preprocessor/samples_per_second"] = self.texts / seconds
        out["preprocessor/tokens_per_second"] = self.tokens / seconds
        if self.fill:
            out["preprocessor/packing_fill"] = sum(self.fill) / len(self.fill)
        out |= self.advantages.summary()
        self.advantages, self.started = AdvantageMetrics(), time.monotonic()
        self.texts, self.tokens, self.fill = 0, 0, []
        return out
