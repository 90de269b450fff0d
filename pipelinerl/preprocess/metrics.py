"""`preprocessor/*`, `adv/*` and `teacher/*`: sums between two records, each metric with its reducer."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipelinerl.finetune.rl.advantages import Advantages
from pipelinerl.finetune.rl.labels import MAX_FAMILIES, situation_family
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.finetune.rl.table import SampleTable
from pipelinerl.preprocess.chunk import ChunkResult

ZERO_ADVANTAGE = 1e-6
OTHER_FAMILY = "other"
UNLABELLED = "none"


@dataclass(slots=True)
class _Label:
    """Sums over samples (all, or those of a situation family or role) and over the buckets that hold one."""

    count: float = 0.0
    advantage: float = 0.0
    abs_advantage: float = 0.0
    reward: float = 0.0
    zero_samples: float = 0.0
    buckets: float = 0.0
    singletons: float = 0.0
    rows: float = 0.0

    def add(self, table: SampleTable, advantages: Advantages, rows: np.ndarray) -> None:
        """Count the samples in `rows`, an index array."""
        advantage = advantages.advantage[rows]
        bucket_rows = advantages.bucket_rows[np.unique(advantages.bucket[rows])]
        self.count += len(rows)
        self.advantage += float(advantage.sum())
        self.abs_advantage += float(np.abs(advantage).sum())
        self.reward += float(table.reward[rows].sum())
        self.zero_samples += float((np.abs(advantage) <= ZERO_ADVANTAGE).sum())
        self.buckets += len(bucket_rows)
        self.singletons += float((bucket_rows == 1).sum())
        self.rows += float(bucket_rows.sum())

    def summary(self, prefix: str) -> dict[str, float]:
        """Every mean has a denominator: a label exists only once it has a sample."""
        return {
            f"{prefix}/count": self.count,
            f"{prefix}/mean": self.advantage / self.count,
            f"{prefix}/abs_mean": self.abs_advantage / self.count,
            f"{prefix}/reward_mean": self.reward / self.count,
            f"{prefix}/frac_zero_texts": self.zero_samples / self.count,
            f"{prefix}/frac_singleton_buckets": self.singletons / self.buckets,
            f"{prefix}/mean_bucket_size": self.rows / self.buckets,
        }


@dataclass(slots=True)
class PreprocessMetrics:
    """Sums since the last record, of which it is made; a ratio with an empty denominator is absent."""

    started: float = field(default_factory=time.monotonic)
    samples: int = 0
    tokens: int = 0
    fill: list[float] = field(default_factory=list)
    all: _Label = field(default_factory=_Label)
    rollouts: float = 0.0
    filtered_groups: float = 0.0
    baseline_only: float = 0.0
    padding_rows: float = 0.0
    split_rollouts: float = 0.0
    scale_sum: float = 0.0
    families: dict[str, _Label] = field(default_factory=dict)
    roles: dict[str, _Label] = field(default_factory=dict)
    scales: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    teachers: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    """Tokens of each sample that a teacher scored, and the sum of their reverse KL."""

    def add_chunk(self, chunk: ChunkResult) -> None:
        """Count a processed chunk."""
        if chunk.table is None or chunk.advantages is None:
            return
        table, advantages = chunk.table, chunk.advantages
        self.all.add(table, advantages, np.arange(len(table)))
        self.rollouts += len(np.unique(table.rollout_codes()))
        self.padding_rows += advantages.padding_rows
        self.filtered_groups += chunk.filtered_groups
        self.baseline_only += sum(reason == "baseline_only" for _, reason in chunk.dropped)
        if table.situation_names:
            names = [situation_family(name) for name in table.situation_names]
            _add_labels(self.families, names, table.situation, table, advantages)
        if table.role_names:
            _add_labels(self.roles, table.role_names, table.role, table, advantages)

    def add_teacher(self, name: str, reverse_kl: np.ndarray) -> None:
        """Count a sample that a teacher scored; log p_policy - log p_teacher of its tokens."""
        self.teachers[name].append((len(reverse_kl), float(reverse_kl.sum())))

    def add_step(
        self, samples: Sequence[Sample], fill: float, split_rollouts: int, roles: Mapping[str, float]
    ) -> None:
        """Count an optimizer step, `fill` the filled share of its rows, and what `apply_scales` said."""
        self.samples += len(samples)
        self.tokens += sum(len(sample.input_ids) for sample in samples)
        self.fill.append(fill)
        self.scale_sum += float(np.array([sample.loss_weight_scale for sample in samples]).sum())
        self.split_rollouts += split_rollouts
        for name, value in roles.items():
            self.scales[name].append(value)

    def record(self, gauges: Mapping[str, float]) -> dict[str, float]:
        """`preprocessor/*`, of gauges and rates, `teacher/*` and `adv/*`."""
        seconds = max(time.monotonic() - self.started, 1e-9)
        out = {f"preprocessor/{name}": float(value) for name, value in gauges.items()}
        out["preprocessor/samples_per_second"] = self.samples / seconds
        out["preprocessor/tokens_per_second"] = self.tokens / seconds
        if self.fill:
            out["preprocessor/packing_fill"] = sum(self.fill) / len(self.fill)
        return out | self._of_teachers() | self.summary()

    def _of_teachers(self) -> dict[str, float]:
        """`teacher/*`: a mean over tokens is an estimate, which may be below 0."""
        out = {}
        for name, scored in self.teachers.items():
            tokens, total = map(sum, zip(*scored, strict=True))
            out[f"teacher/{name}/reverse_kl"] = total / tokens
            out[f"teacher/{name}/samples"] = float(len(scored))
        return out

    def summary(self) -> dict[str, float]:
        """`adv/*`; never NaN."""
        ratios = {
            "frac_singleton_buckets": (self.all.singletons, self.all.buckets),
            "mean_bucket_size": (self.all.rows, self.all.buckets),
            "mean_bucket_size_real": (self.all.count, self.all.buckets),
            "frac_zero_texts": (self.all.zero_samples, self.all.count),
            "texts_per_rollout": (self.all.count, self.rollouts),
            "scale_mean": (self.scale_sum, self.samples),
        }
        out = {f"adv/{name}": above / below for name, (above, below) in ratios.items() if below}
        for name in ("filtered_groups", "padding_rows", "split_rollouts"):
            out[f"adv/{name}"] = getattr(self, name)
        out["adv/baseline_only_texts"] = self.baseline_only
        for name, label in self.families.items():
            out |= label.summary(f"adv/situation/{name}")
        for name, label in self.roles.items():
            out |= label.summary(f"adv/role/{name}")
        for name, values in self.scales.items():
            mean = name.endswith("/mass")
            out[name] = sum(values) / len(values) if mean else sum(values)
        return out


def _add_labels(
    labels: dict[str, _Label],
    names: Sequence[str],
    column: np.ndarray,
    table: SampleTable,
    advantages: Advantages,
) -> None:
    """Count samples by label; `column` int64 `[N]` indexes `names`; samples without one are `none`."""
    distinct = list(dict.fromkeys([*names, UNLABELLED]))
    code_of = np.array([distinct.index(name) for name in [*names, UNLABELLED]])  # NONE = -1 picks the last
    code = code_of[column]
    order = np.argsort(code, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(code[order])) + 1):
        name = distinct[code[rows[0]]]
        if name not in labels and name != UNLABELLED and len(labels.keys() - {UNLABELLED}) >= MAX_FAMILIES:
            name = OTHER_FAMILY
        labels.setdefault(name, _Label()).add(table, advantages, rows)
