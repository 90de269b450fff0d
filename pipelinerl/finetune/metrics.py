"""The metrics of one optimizer step: METRICS has a row for each, with how its values are put together.

The learner asks `token_statistics` of each micro-batch; the loop merges the ranks and asks `step_metrics`.
"""

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.mismatch import SHAPE, mismatch_metrics
from pipelinerl.finetune.peaks import Hardware
from pipelinerl.finetune.ratios import LOG_RATIO_BINS, ratio_histogram, ratio_quantiles
from pipelinerl.finetune.rl.labels import TextStatistics, capped_families
from pipelinerl.finetune.rl.losses import policy_loss
from pipelinerl.finetune.rl.losses.base import Coefficients, LossInputs, LossMetric, PolicyLoss, Reducer, kl_N
from pipelinerl.finetune.rl.losses.correction import corrected, importance
from pipelinerl.modeling.routing import RoutingCounts
from pipelinerl.observe.metrics import histogram


def _labels(
    ours: dict[str, TextStatistics], theirs: Mapping[str, TextStatistics]
) -> dict[str, TextStatistics]:
    for label, statistics in theirs.items():
        ours.setdefault(label, TextStatistics()).add(statistics)
    return ours


def _largest(ours: Mapping[str, float], theirs: Mapping[str, float]) -> dict[str, float]:
    return {**ours, **{name: max(ours.get(name, 0.0), size) for name, size in theirs.items()}}


@dataclass(slots=True)
class StepStatistics:
    """One rank's counts of one step; plain values, so that ranks exchange them in a single gather.

    `merge` adds the ranks' values up where the field names nothing else.
    """

    vectors: list[list[float]] = field(default_factory=list)
    texts: int = 0
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    sequences: list[int] = field(default_factory=list)
    padding: int = 0
    stale_tokens: int = 0
    stale_texts: int = 0
    multi_version_texts: int = 0
    queued: int = 0
    epoch: int = field(default_factory=int, metadata={"merge": max})
    versions: list[int] = field(default_factory=list)
    lags: Counter[int] = field(default_factory=Counter)
    masked: Counter[str] = field(default_factory=Counter)
    """Tokens without a weight in the policy term, by the first reason for it."""
    mismatch: np.ndarray = field(default_factory=lambda: np.zeros(SHAPE))
    """Sums of `mismatch_sums`."""
    routing: list[RoutingCounts] = field(default_factory=list)
    """One of each rank that trains a mixture of experts."""
    labels: dict[str, TextStatistics] = field(default_factory=dict, metadata={"merge": _labels})
    memory: dict[str, float] = field(default_factory=dict, metadata={"merge": _largest})
    waited_s: float = field(default_factory=float, metadata={"merge": max})
    worked_s: float = field(default_factory=float, metadata={"merge": max})

    def merge(self, others: "Iterable[StepStatistics]") -> "StepStatistics":
        """Those of all ranks: times are the longest, memory and epoch the largest."""
        for other in others:
            for one in fields(self):
                how = one.metadata.get("merge", operator.add)
                setattr(self, one.name, how(getattr(self, one.name), getattr(other, one.name)))
        return self


class Tokens:
    """What functions of tokens see: the labelled tokens of one micro-batch, float32 `[N]` each."""

    def __init__(self, inputs: LossInputs, loss: torch.Tensor, rl: RLConfig, input_size: int) -> None:
        self.inputs, self.rl = inputs, rl
        self.loss = loss.float().reshape(1)
        self.policy_loss = policy_loss(rl.policy_loss)
        self.seen = corrected(inputs, rl.correction)
        """What the policy loss saw."""
        self.log_ratio_N = inputs.log_ratio_N
        self.ratio_N = self.log_ratio_N.exp()
        """Not clamped; `rl/ratio_new_old` is the ratio that the loss uses."""
        self.nothing_N = torch.full_like(self.ratio_N, np.nan)
        """A metric of it is absent."""
        self.kl_N = kl_N(inputs, rl)
        self.ref_log_ratio_N = inputs.ref_logprobs_N - inputs.logprobs_N
        self.values_N = self.nothing_N if inputs.values_N is None else inputs.values_N
        self.value_error_N = (self.values_N - inputs.rewards_N).square()
        self.ones_N = torch.ones_like(self.ratio_N)
        self.importance = None if rl.correction.mode == "off" else importance(inputs, rl.correction)
        self.input_size = self.ratio_N.new_full((), float(input_size))

    def __len__(self) -> int:
        return len(self.ratio_N)

    def beyond_N(self, side: str, masks: bool) -> torch.Tensor:
        """1 where the correction masks (or moves) a weighted token whose ratio is too `low` or too `high`."""
        if self.importance is None or masks != (self.rl.correction.mode == "mask"):
            return self.nothing_N
        where: torch.Tensor = getattr(self.importance, f"too_{side}_N")
        return (where & (self.inputs.weight_N > 0)).float()


@dataclass(frozen=True, kw_only=True)
class Step:
    """What functions of the whole step see. Rates count the waiting of the trainer, MFU does not."""

    counts: StepStatistics
    rl: Mapping[str, float]
    """The metrics of tokens, put together."""
    coefficients: Coefficients
    ranks: int
    hardware: Hardware

    @property
    def seconds(self) -> float:
        return max(self.counts.waited_s + self.counts.worked_s, 1e-9)

    @property
    def worked(self) -> float:
        return max(self.counts.worked_s, 1e-9)

    @property
    def tokens(self) -> float:
        return float(sum(self.counts.tokens))

    @property
    def rows_at_once(self) -> int:
        return self.ranks // self.hardware.ranks_of_row

    @property
    def batches(self) -> int:
        return max(len(self.counts.tokens), 1)

    @property
    def routing(self) -> RoutingCounts | None:
        """Of all ranks; None for a dense model."""
        each = self.counts.routing
        return sum(each[1:], each[0]) if each else None


class Metric(NamedTuple):
    """A row of METRICS. `of` takes Tokens and gives `[N]` values, or with Reducer.STEP takes Step and gives a
    number, a histogram, or None where there is nothing to tell."""

    name: str
    reducer: Reducer
    of: Callable[[Any], Any]


def _ess(step: Step) -> float | None:
    """(sum r)^2 / (N * sum r^2), with unclamped ratios."""
    n = step.rl.get("rl/num_output_tokens_sum", 0.0)
    squares = step.rl.get("rl/ratio_new_old_squared_sum", 0.0)
    return step.rl["rl/ratio_new_old_sum"] ** 2 / (n * squares) if n and squares else None


def _mfu(step: Step, tokens: float) -> float | None:
    """Forward and backward of a token (Kaplan et al. 2020), whatever is computed twice."""
    if step.hardware.peak_flops is None:
        return None
    return 6 * step.hardware.parameters / (step.worked * step.ranks * step.hardware.peak_flops) * tokens


def _lag_mean(step: Step) -> float | None:
    lags = step.counts.lags
    return sum(lag * n for lag, n in lags.items()) / lags.total() if lags else None


def _lag_histogram(step: Step) -> dict[str, list[float]] | None:
    """Trained tokens by lag, in bins that grow with it; those below 0 (in a replay) share the first."""
    lags = step.counts.lags
    if not lags:
        return None
    values = np.array(sorted(lags), np.int64)
    counts = np.array([lags[int(v)] for v in values], np.float64)
    edges = np.unique(np.concatenate([[0, 1], np.geomspace(1, max(2, values.max() + 1), 16).astype(int)]))
    edges = np.append(edges, max(int(edges[-1]), int(values.max())) + 1)
    if values[0] < 0:
        edges = np.append(values[0], edges)
    return histogram(values, edges, counts)


def _of_routing(value: Callable[[RoutingCounts], float | None]) -> Callable[[Step], float | None]:
    return lambda step: None if (counts := step.routing) is None else value(counts)


def _load(counts: RoutingCounts) -> float | None:
    """Mean over layers of the busiest expert's tokens over the mean expert's."""
    means = counts.loads.mean(1)
    return float((counts.loads.max(1) / means).mean()) if means.all() else None


SUM, TEXT_MEAN, MAX, MIN, STEP = Reducer
METRICS: tuple[Metric, ...] = (
    Metric("rl/reward", TEXT_MEAN, lambda t: t.inputs.rewards_N),
    Metric("rl/advantage", TEXT_MEAN, lambda t: t.inputs.advantages_N),
    Metric("rl/kl", TEXT_MEAN, lambda t: t.kl_N),
    Metric("rl/entropy", TEXT_MEAN, lambda t: t.inputs.entropy_N),
    Metric("rl/old_logprobs", TEXT_MEAN, lambda t: t.inputs.old_logprobs_N),
    Metric("rl/new_logprobs", TEXT_MEAN, lambda t: t.inputs.logprobs_N),
    Metric("rl/ref_logprobs", TEXT_MEAN, lambda t: t.inputs.ref_logprobs_N),
    Metric("rl/kl_new_old", TEXT_MEAN, lambda t: t.ratio_N - t.log_ratio_N - 1),
    Metric("rl/mean_abs_log_ratio_new_old", TEXT_MEAN, lambda t: t.log_ratio_N.abs()),
    # As upstream: the ratio that the loss uses. Sums (and so ess) and extremes stay unclamped.
    Metric("rl/ratio_new_old", TEXT_MEAN, lambda t: t.policy_loss.reported_ratio_N(t.seen, t.rl)),
    Metric("rl/ratio_ref_new", TEXT_MEAN, lambda t: t.ref_log_ratio_N.exp()),
    Metric(
        "rl/ratio_ref_old", TEXT_MEAN, lambda t: (t.inputs.ref_logprobs_N - t.inputs.old_logprobs_N).exp()
    ),
    Metric(
        "rl/clamp_log_ratio_ref_new_indicator",
        TEXT_MEAN,
        lambda t: (t.ref_log_ratio_N.abs() > t.rl.clamp_log_ratio_ref_new_value).float(),
    ),
    Metric(
        "rl/clamp_log_ratio_new_old_indicator",
        TEXT_MEAN,
        lambda t: t.policy_loss.clipped_N(t.seen, t.rl).float(),
    ),
    Metric("rl/token_weight", TEXT_MEAN, lambda t: t.seen.weight_N),
    # NaN, and so absent, without a correction; of a value head likewise.
    Metric(
        "rl/correction_weight",
        TEXT_MEAN,
        lambda t: t.nothing_N if t.importance is None else t.importance.bounded_N,
    ),
    Metric("rl/masked/ratio_low", SUM, lambda t: t.beyond_N("low", True)),
    Metric("rl/masked/ratio_high", SUM, lambda t: t.beyond_N("high", True)),
    Metric("rl/bounded/ratio_low", SUM, lambda t: t.beyond_N("low", False)),
    Metric("rl/bounded/ratio_high", SUM, lambda t: t.beyond_N("high", False)),
    Metric("rl/value_mean", TEXT_MEAN, lambda t: t.values_N),
    Metric("rl/value_mse", TEXT_MEAN, lambda t: t.value_error_N),
    Metric("rl/value_loss", SUM, lambda t: t.inputs.weight_N * 0.5 * t.value_error_N),
    Metric("rl/value_max", MAX, lambda t: t.values_N),
    Metric("rl/value_min", MIN, lambda t: t.values_N),
    Metric("rl/loss", SUM, lambda t: t.loss),
    Metric("rl/ratio_new_old_sum", SUM, lambda t: t.ratio_N),
    Metric("rl/ratio_new_old_squared_sum", SUM, lambda t: t.ratio_N.square()),
    Metric("rl/num_output_tokens_sum", SUM, lambda t: t.ones_N),
    Metric("rl/input_size", SUM, lambda t: t.input_size),
    Metric("rl/max_loss", MAX, lambda t: t.loss),
    Metric("rl/max_reward", MAX, lambda t: t.inputs.rewards_N),
    Metric("rl/max_advantage", MAX, lambda t: t.inputs.advantages_N),
    Metric("rl/max_kl", MAX, lambda t: t.kl_N),
    Metric("rl/max_token_weight", MAX, lambda t: t.seen.weight_N),
    Metric("rl/max_ratio_new_old", MAX, lambda t: t.ratio_N),
    Metric("rl/min_loss", MIN, lambda t: t.loss),
    Metric("rl/min_reward", MIN, lambda t: t.inputs.rewards_N),
    Metric("rl/min_advantage", MIN, lambda t: t.inputs.advantages_N),
    Metric("rl/min_kl", MIN, lambda t: t.kl_N),
    Metric("rl/min_token_weight", MIN, lambda t: t.seen.weight_N),
    Metric("rl/min_ratio_new_old", MIN, lambda t: t.ratio_N),
    Metric("rl/ess", STEP, _ess),
    Metric("rl/masked/max_lag", STEP, lambda s: s.counts.masked["max_lag"]),
    Metric("rl/masked/overlong", STEP, lambda s: s.counts.masked["overlong"]),
    Metric("rl/masked/no_weight", STEP, lambda s: s.counts.masked["no_weight"]),
    Metric("rl/kl_coef", STEP, lambda s: s.coefficients.kl),
    Metric("rl/entropy_bonus_coef", STEP, lambda s: s.coefficients.entropy),
    Metric("throughput/tokens_per_step", STEP, lambda s: s.tokens),
    Metric("throughput/unique_tokens_per_step", STEP, lambda s: s.counts.computed),
    Metric("throughput/tokens_per_unique_token", STEP, lambda s: s.tokens / max(s.counts.computed, 1)),
    Metric("throughput/row_fill", STEP, lambda s: s.counts.computed / s.batches / s.hardware.row),
    Metric("throughput/micro_batches_per_step", STEP, lambda s: len(s.counts.tokens)),
    Metric("throughput/tokens_per_sec", STEP, lambda s: s.tokens / s.seconds),
    Metric("throughput/tokens_perGPU_per_sec", STEP, lambda s: s.tokens / s.seconds / s.ranks),
    Metric("throughput/real_tokens_per_sec", STEP, lambda s: (s.tokens - s.counts.padding) / s.seconds),
    Metric("throughput/samples_per_sec", STEP, lambda s: s.counts.texts / s.seconds),
    Metric("throughput/steps_per_sec", STEP, lambda s: 1 / s.seconds),
    Metric("throughput/sec_per_step", STEP, lambda s: s.seconds),
    Metric("throughput/sec_per_pass", STEP, lambda s: s.counts.worked_s / s.batches * s.rows_at_once),
    Metric("throughput/working_tokens_per_sec", STEP, lambda s: s.tokens / s.worked),
    Metric("throughput/copy_bytes_per_sec", STEP, lambda s: s.hardware.copy_bytes_per_s),
    Metric("throughput/mfu", STEP, lambda s: _mfu(s, s.tokens)),
    Metric("throughput/mfu_unique", STEP, lambda s: _mfu(s, s.counts.computed)),
    Metric("throughput/tokens_per_micro_batch", STEP, lambda s: _mean(s.counts.tokens)),
    Metric("throughput/min_tokens_per_micro_batch", STEP, lambda s: min(s.counts.tokens, default=None)),
    Metric("throughput/max_tokens_per_micro_batch", STEP, lambda s: max(s.counts.tokens, default=None)),
    Metric("throughput/sequences_per_micro_batch", STEP, lambda s: _mean(s.counts.sequences)),
    Metric("throughput/min_sequences_per_micro_batch", STEP, lambda s: min(s.counts.sequences, default=None)),
    Metric("throughput/max_sequences_per_micro_batch", STEP, lambda s: max(s.counts.sequences, default=None)),
    Metric("routing/replayed_share", STEP, _of_routing(lambda r: r.replayed / max(r.tokens, 1))),
    Metric(
        "routing/differing_share",
        STEP,
        _of_routing(lambda r: r.differing / r.choices if r.choices else None),
    ),
    Metric(
        "routing/disagreeing_share",
        STEP,
        _of_routing(lambda r: r.disagreeing / r.replayed if r.replayed else None),
    ),
    Metric(
        "routing/bytes_per_token",
        STEP,
        _of_routing(lambda r: r.record_bytes / r.replayed if r.replayed else None),
    ),
    Metric("routing/load_max_over_mean", STEP, _of_routing(_load)),
    Metric("routing/aux_loss", STEP, _of_routing(lambda r: _mean(r.aux))),
    Metric("stats/queue/batches", STEP, lambda s: s.counts.queued),
    Metric(
        "stats/multi_version_share", STEP, lambda s: s.counts.multi_version_texts / max(s.counts.texts, 1)
    ),
    Metric("stats/lag", STEP, _lag_mean),
    Metric("stats/lag_max", STEP, lambda s: max(s.counts.lags, default=None)),
    Metric("stats/lag_histogram", STEP, _lag_histogram),
)
"""What the trainer measures of a step. A new metric is a row here and one of docs/metrics.md; totals of the
run are counters of `TrainingMetrics`. What only one loss has, its file declares (`PolicyLoss.metrics`)."""

_OF_TOKENS = tuple(metric for metric in METRICS if metric.reducer is not STEP)
_OF_STEP = tuple(metric for metric in METRICS if metric.reducer is STEP)


def _of_loss(loss: PolicyLoss) -> list[Metric]:
    def of(one: LossMetric) -> Metric:
        return Metric(f"rl/loss/{one.name}", one.reducer, lambda t: one.of(t.seen, t.rl))

    return [of(one) for one in loss.metrics]


@torch.no_grad()
def token_statistics(
    inputs: LossInputs, count_N: torch.Tensor, loss: torch.Tensor, rl: RLConfig, input_size: int
) -> torch.Tensor:
    """What one micro-batch measures, on the device and without synchronisation.

    float32, the metrics of tokens as in METRICS, the counts of `ratio_histogram`, metrics of the loss.
    count_N float32: number of targets of the token's sample, so that sums of x / count
    are sums of sample means.
    """
    tokens = Tokens(inputs, loss, rl, input_size)
    measured = [_of_batch(metric, tokens, count_N) for metric in _OF_TOKENS]
    of_loss = [_of_batch(metric, tokens, count_N)[None] for metric in _of_loss(tokens.policy_loss)]
    return torch.cat([torch.stack(measured), ratio_histogram(tokens.log_ratio_N), *of_loss])


def _of_batch(metric: Metric, tokens: Tokens, count_N: torch.Tensor) -> torch.Tensor:
    """A scalar; that of no token leaves the others' as it is."""
    if not len(tokens) and metric.reducer in (MAX, MIN):
        return tokens.ratio_N.new_full((), -np.inf if metric.reducer is MAX else np.inf)
    values: torch.Tensor = metric.of(tokens)
    if metric.reducer is MAX:
        return values.max()
    if metric.reducer is MIN:
        return values.min()
    return values.sum() if metric.reducer is SUM else (values / count_N).sum()


def measured_of_tokens(vectors: list[list[float]], texts: int, loss: PolicyLoss) -> dict[str, float]:
    """The metrics of tokens from the micro-batches' vectors; one without a finite value is absent."""
    if not vectors:
        return {}
    of_tokens, counts, of_loss = np.split(
        np.array(vectors, np.float64), [len(_OF_TOKENS), len(_OF_TOKENS) + len(LOG_RATIO_BINS)], axis=1
    )
    out = ratio_quantiles(counts.sum(axis=0))
    for column, metric in [*zip(of_tokens.T, _OF_TOKENS), *zip(of_loss.T, _of_loss(loss))]:
        if metric.reducer is MAX:
            value = column.max()
        elif metric.reducer is MIN:
            value = column.min()
        else:
            value = column.sum() / (max(texts, 1) if metric.reducer is TEXT_MEAN else 1)
        if np.isfinite(value):
            out[metric.name] = float(value)
    return out


def step_metrics(
    counts: StepStatistics,
    coefficients: Coefficients,
    ranks: int,
    hardware: Hardware,
    loss: PolicyLoss | None = None,
) -> dict[str, Any]:
    """Metrics that have a value, the quantiles of the ratio, and means by role and situation.

    `loss` is the one of the run, where it may have metrics of its own.
    """
    out: dict[str, Any] = {**measured_of_tokens(counts.vectors, counts.texts, loss or PolicyLoss())}
    step = Step(counts=counts, rl=out, coefficients=coefficients, ranks=ranks, hardware=hardware)
    of_step = {metric.name: metric.of(step) for metric in _OF_STEP}
    out |= {name: float(v) if isinstance(v, int) else v for name, v in of_step.items() if v is not None}
    if loss is None or loss.reads_ratio:  # otherwise the policy may not even have sampled the texts
        out |= mismatch_metrics(counts.mismatch)
    for label, statistics in capped_families(counts.labels).items():
        out |= {f"rl/{label}/{name}": value for name, value in statistics.metrics().items()}
    return out


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
