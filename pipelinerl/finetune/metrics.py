"""Statistics of one optimizer step. Every metric declares how its values are put together."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

import numpy as np
import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.labels import TextStatistics, capped_families
from pipelinerl.finetune.rl.losses import policy_loss
from pipelinerl.finetune.rl.losses.base import LOG_RATIO_BOUND, Coefficients, LossInputs, kl_N


class Reducer(Enum):
    """How micro-batches and ranks are combined."""

    SUM = "sum"
    TEXT_MEAN = "mean over the step's texts of each text's mean over its tokens"
    MAX = "max"
    MIN = "min"


_TEXT_MEANS = (
    "reward",
    "advantage",
    "kl",
    "entropy",
    "old_logprobs",
    "new_logprobs",
    "ref_logprobs",
    "kl_new_old",
    "mean_abs_log_ratio_new_old",
    "ratio_new_old",
    "ratio_ref_new",
    "ratio_ref_old",
    "clamp_log_ratio_ref_new_indicator",
    "clamp_log_ratio_new_old_indicator",
    "token_weight",
    "value_mean",
    "value_mse",
)
_SUMS = (
    "loss",
    "value_loss",
    "ratio_new_old_sum",
    "ratio_new_old_squared_sum",
    "num_output_tokens_sum",
    "input_size",
)
_EXTREMES = ("loss", "reward", "advantage", "kl", "token_weight", "ratio_new_old")

REDUCERS: dict[str, Reducer] = (
    dict.fromkeys(_TEXT_MEANS, Reducer.TEXT_MEAN)
    | dict.fromkeys(_SUMS, Reducer.SUM)
    | {f"max_{name}": Reducer.MAX for name in _EXTREMES}
    | {f"min_{name}": Reducer.MIN for name in _EXTREMES}
    | {"value_max": Reducer.MAX, "value_min": Reducer.MIN}
)
"""Reducer of each `rl/` metric; those of values are absent without a value head."""


_HALF = np.geomspace(1e-5, LOG_RATIO_BOUND, 120)
LOG_RATIO_EDGES = np.concatenate([-_HALF[::-1], _HALF])
"""Bins of the log importance ratio, each 13 % of its distance from 0 wide; tokens with ratio 1 share one."""
RATIO_PERCENTILES = (1, 5, 50, 95, 99)


@lru_cache(maxsize=4)
def _edges(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """LOG_RATIO_EDGES on the device: copied once, because a copy would wait for it."""
    return torch.as_tensor(LOG_RATIO_EDGES, dtype=dtype, device=device)


@torch.no_grad()
def ratio_histogram(log_ratio_N: torch.Tensor) -> torch.Tensor:
    """float32 `[len(LOG_RATIO_EDGES) + 1]`: tokens by log importance ratio, not clipped."""
    edges = _edges(log_ratio_N.dtype, log_ratio_N.device)
    bins = torch.bucketize(log_ratio_N, edges)
    return log_ratio_N.new_zeros(len(edges) + 1).index_add(0, bins, torch.ones_like(log_ratio_N))


def ratio_quantiles(counts: np.ndarray) -> dict[str, float]:
    """Quantiles of the importance ratio from the counts of `ratio_histogram`, linear within a bin."""
    total = counts.sum()
    if total == 0:
        return {}
    reached = np.concatenate([[0.0], np.cumsum(counts)]) / total
    places = np.concatenate([LOG_RATIO_EDGES[:1], LOG_RATIO_EDGES, LOG_RATIO_EDGES[-1:]])
    out = {}
    for percent in RATIO_PERCENTILES:
        share = percent / 100
        at = min(max(int(np.searchsorted(reached, share)) - 1, 0), len(counts) - 1)
        inside = (share - reached[at]) / max(reached[at + 1] - reached[at], 1e-12)
        place = places[at] + inside * (places[at + 1] - places[at])
        out[f"ratio_new_old_p{percent:02d}"] = float(np.exp(place))
    return out


@torch.no_grad()
def text_means(inputs: LossInputs, count_N: torch.Tensor, rl: RLConfig) -> torch.Tensor:
    """float32 `[2, S]`: means over each text's tokens of the KL to the reference and of the advantage."""
    values = torch.stack([kl_N(inputs, rl), inputs.advantages_N]) / count_N
    return values.new_zeros(2, inputs.n_texts).index_add(1, inputs.text_N, values)


@torch.no_grad()
def token_statistics(
    inputs: LossInputs, count_N: torch.Tensor, loss: torch.Tensor, rl: RLConfig, input_size: int
) -> torch.Tensor:
    """float32 `[len(REDUCERS) + len(LOG_RATIO_EDGES) + 1]` on the device, without synchronisation.

    First the metrics in the order of REDUCERS, then the counts of `ratio_histogram`.

    count_N float32: number of targets of the token's text, so that sums of x / count are sums of text means.
    """
    chosen, difference = policy_loss(rl.policy_loss), inputs.log_ratio_N
    ratio = difference.exp()
    to_reference = inputs.ref_logprobs_N - inputs.logprobs_N
    bound = rl.clamp_log_ratio_ref_new_value
    tokens = {
        "reward": inputs.rewards_N,
        "advantage": inputs.advantages_N,
        "kl": kl_N(inputs, rl),
        "entropy": inputs.entropy_N,
        "old_logprobs": inputs.old_logprobs_N,
        "new_logprobs": inputs.logprobs_N,
        "ref_logprobs": inputs.ref_logprobs_N,
        "kl_new_old": ratio - difference - 1,
        "mean_abs_log_ratio_new_old": difference.abs(),
        # As upstream: the ratio that the loss uses. Sums (and so ess) and extremes stay unclamped.
        "ratio_new_old": chosen.reported_ratio_N(inputs, rl),
        "ratio_ref_new": to_reference.exp(),
        "ratio_ref_old": (inputs.ref_logprobs_N - inputs.old_logprobs_N).exp(),
        "clamp_log_ratio_ref_new_indicator": (to_reference.abs() > bound).float(),
        "clamp_log_ratio_new_old_indicator": chosen.clipped_N(inputs, rl).float(),
        "token_weight": inputs.weight_N,
    }
    values = torch.full_like(ratio, np.nan) if inputs.values_N is None else inputs.values_N
    tokens |= {"value_mean": values, "value_mse": (values - inputs.rewards_N).square()}
    means = [(tokens[name] / count_N).sum() for name in _TEXT_MEANS]
    histogram = ratio_histogram(difference)
    n_tokens = ratio.new_full((), float(len(ratio)))
    squares = inputs.weight_N * 0.5 * tokens["value_mse"]
    sums = [loss.float(), squares.sum(), ratio.sum(), ratio.square().sum(), n_tokens]
    sums.append(ratio.new_full((), float(input_size)))
    empty = len(ratio) == 0
    extremes = tokens | {"loss": loss.float().reshape(1), "ratio_new_old": ratio}
    high = [ratio.new_full((), -np.inf) if empty else extremes[name].max() for name in _EXTREMES]
    low = [ratio.new_full((), np.inf) if empty else extremes[name].min() for name in _EXTREMES]
    limits = (
        [ratio.new_full((), -np.inf), ratio.new_full((), np.inf)] if empty else [values.max(), values.min()]
    )
    return torch.cat([torch.stack([*means, *sums, *high, *low, *limits]), histogram])


@dataclass(frozen=True, slots=True)
class Hardware:
    """What throughput is compared with: tokens that a row has room for, numbers in the model that one token
    passes through, and the operations per second of one device in the type that the model computes in (None:
    not known)."""

    row: int
    parameters: int
    peak_flops: float | None


_PEAKS = {"B200": 2250e12, "H200": 989e12, "H100": 989e12, "H20": 148e12, "A100": 312e12, "L40S": 362e12} | {
    "H200 NVL": 835e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
}
"""Dense bfloat16 with float32 sums, by part of the device's name; from NVIDIA's data sheets."""


def peak_flops(device: torch.device, bfloat16: bool) -> float | None:
    """Operations per second of a device whose figure is known."""
    if device.type != "cuda" or not bfloat16:
        return None
    name = torch.cuda.get_device_name(device)
    # Longest first: H200 is no H20.
    return next(
        (peak for part, peak in sorted(_PEAKS.items(), key=lambda p: -len(p[0])) if part in name), None
    )


@dataclass(slots=True)
class StepStatistics:
    """One rank's sums of one step; plain values, so that ranks exchange them in a single gather."""

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
    epoch: int = 0
    versions: list[int] = field(default_factory=list)
    lags: Counter[int] = field(default_factory=Counter)
    labels: dict[str, TextStatistics] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    waited_s: float = 0.0
    worked_s: float = 0.0

    def merge(self, others: "Iterable[StepStatistics]") -> "StepStatistics":
        """Sum over ranks; times are the longest, memory and epoch the largest."""
        for other in others:
            self.vectors += other.vectors
            self.texts += other.texts
            self.tokens += other.tokens
            self.computed += other.computed
            self.sequences += other.sequences
            self.padding += other.padding
            self.stale_tokens += other.stale_tokens
            self.stale_texts += other.stale_texts
            self.multi_version_texts += other.multi_version_texts
            self.queued += other.queued
            self.versions += other.versions
            self.lags.update(other.lags)
            for label, statistics in other.labels.items():
                self.labels.setdefault(label, TextStatistics()).add(statistics)
            for name, size in other.memory.items():
                self.memory[name] = max(self.memory.get(name, 0.0), size)
            self.epoch = max(self.epoch, other.epoch)
            self.waited_s = max(self.waited_s, other.waited_s)
            self.worked_s = max(self.worked_s, other.worked_s)
        return self


def _reduce(vectors: list[list[float]], texts: int) -> dict[str, float]:
    """Combine the micro-batches' vectors by REDUCERS; a metric without values is absent."""
    if not vectors:
        return {}
    table = np.array(vectors, np.float64)
    out = ratio_quantiles(table[:, len(REDUCERS) :].sum(axis=0))
    for column, (name, reducer) in zip(table.T, REDUCERS.items()):
        if reducer is Reducer.MAX:
            value = column.max()
        elif reducer is Reducer.MIN:
            value = column.min()
        else:
            value = column.sum() / (max(texts, 1) if reducer is Reducer.TEXT_MEAN else 1)
        if np.isfinite(value):
            out[name] = float(value)
    return out


def rl_metrics(step: StepStatistics, coefficients: Coefficients) -> dict[str, float]:
    """The `rl/` metrics of a step. ess = (sum r)^2 / (N * sum r^2) with unclamped ratios."""
    values = _reduce(step.vectors, step.texts)
    n, squares = values.get("num_output_tokens_sum", 0.0), values.get("ratio_new_old_squared_sum", 0.0)
    if n and squares:
        values["ess"] = values["ratio_new_old_sum"] ** 2 / (n * squares)
    values["kl_coef"], values["entropy_bonus_coef"] = coefficients.kl, coefficients.entropy
    out = {f"rl/{name}": value for name, value in values.items()}
    for label, s in capped_families(step.labels).items():
        out[f"rl/{label}/texts"] = s.texts
        for name in ("reward", "advantage", "abs_advantage", "kl"):
            out[f"rl/{label}/{name}"] = getattr(s, name) / s.texts
    return out


def throughput_metrics(step: StepStatistics, ranks: int, hardware: Hardware) -> dict[str, float]:
    """The `throughput/` metrics of a step; rates count the whole step, waiting included, MFU does not."""
    seconds, worked = max(step.waited_s + step.worked_s, 1e-9), max(step.worked_s, 1e-9)
    tokens, batches = float(sum(step.tokens)), len(step.tokens)
    out = {
        "tokens_per_step": tokens,
        "unique_tokens_per_step": step.computed,
        "tokens_per_unique_token": tokens / max(step.computed, 1),
        "row_fill": step.computed / max(batches, 1) / hardware.row,
        "micro_batches_per_step": batches,
        "tokens_per_sec": tokens / seconds,
        "tokens_perGPU_per_sec": tokens / seconds / ranks,
        "real_tokens_per_sec": (tokens - step.padding) / seconds,
        "samples_per_sec": step.texts / seconds,
        "steps_per_sec": 1 / seconds,
        "sec_per_step": seconds,
        "sec_per_pass": step.worked_s / max(batches, 1) * ranks,
        "working_tokens_per_sec": tokens / worked,
    }
    if hardware.peak_flops is not None:
        # Forward and backward of a token (Kaplan et al. 2020), whatever is computed twice.
        share = 6 * hardware.parameters / (worked * ranks * hardware.peak_flops)
        out |= {"mfu": share * tokens, "mfu_unique": share * step.computed}
    for name, values in (("tokens", step.tokens), ("sequences", step.sequences)):
        if values:
            out[f"{name}_per_micro_batch"] = sum(values) / batches
            out[f"min_{name}_per_micro_batch"] = min(values)
            out[f"max_{name}_per_micro_batch"] = max(values)
    return {f"throughput/{name}": float(value) for name, value in out.items()}


def lag_metrics(lags: Mapping[int, int]) -> dict[str, float | dict[str, list[float]]]:
    """Mean, maximum and histogram of the lag of trained tokens, in texts."""
    if not lags:
        return {}
    values = np.array(sorted(lags), np.int64)
    counts = np.array([lags[int(v)] for v in values], np.float64)
    edges = np.unique(np.concatenate([[0, 1], np.geomspace(1, max(2, values.max() + 1), 16).astype(int)]))
    edges = np.append(edges, max(int(edges[-1]), int(values.max())) + 1)
    filled, _ = np.histogram(values, bins=edges, weights=counts)
    return {
        "stats/lag": float((values * counts).sum() / counts.sum()),
        "stats/lag_max": float(values.max()),
        "stats/lag_histogram": {"edges": edges.astype(float).tolist(), "counts": filled.tolist()},
    }
