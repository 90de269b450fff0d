"""Where log(trainer / engine) of a token comes from: the age of the weights that sampled it, or arithmetic.

Every token has the version that sampled it. Where that is the version that the step begins with, engine and
trainer had the same weights, and what differs is how they compute. What older tokens differ by beyond that is
the age of their weights. Counted on the device by `Learner.accumulate`, read by the metrics of a step.
"""

import numpy as np
import torch

from pipelinerl.finetune.ratios import Bins
from pipelinerl.finetune.rl.losses.base import LOG_RATIO_BOUND
from pipelinerl.finetune.rl.targets import Targets
from pipelinerl.observe.mismatch import AGES, EXPERTS

GROUPS = AGES + EXPERTS
_FIRST_STEPS = np.array([1, 2, 4, 8])
_OF_AGE = np.array([0, 2, 3, 4, 5])
_MOMENTS = 4
_BINS = Bins(np.geomspace(1e-6, LOG_RATIO_BOUND, 80), 0.0)
"""Of |log ratio|, each 24 % of its size wide."""
SHAPE = (len(GROUPS), _MOMENTS + len(_BINS))


def age_groups(targets: Targets) -> np.ndarray:
    """int64 `[N]`: the place in AGES of each token; len(GROUPS) where it is stale or of no known version."""
    age = targets.age
    groups = _OF_AGE[np.searchsorted(_FIRST_STEPS, age, side="right")]
    oldest_S = np.zeros(targets.n_samples, np.int64)
    np.maximum.at(oldest_S, targets.sample, age)
    groups[(age == 0) & (oldest_S[targets.sample] > 0)] = AGES.index("lag_0_continued")
    groups[(age < 0) | targets.stale] = len(GROUPS)
    return groups


@torch.no_grad()
def mismatch_sums(
    log_ratio_N: torch.Tensor, groups_N: torch.Tensor, differs_N: torch.Tensor | None = None
) -> torch.Tensor:
    """float32 SHAPE: for each of GROUPS the sums of |d|, d^2, r, r^2 (d = log r) and a histogram of |d|.

    groups_N as `age_groups` says. differs_N bool `[N]`: some router would have chosen otherwise than the
    engine; None: not known. Without synchronisation.
    """
    groups, log_ratio = groups_N, log_ratio_N
    if differs_N is not None:
        nothing = torch.full_like(groups_N, len(GROUPS))
        of_experts = torch.where(groups_N == 0, len(AGES) + differs_N.to(groups_N.dtype), nothing)
        groups, log_ratio = torch.cat([groups_N, of_experts]), torch.cat([log_ratio_N, log_ratio_N])
    size, ratio = log_ratio.abs(), log_ratio.exp()
    values = torch.stack([size, log_ratio.square(), ratio, ratio.square()], 1)
    rows = len(GROUPS) + 1  # the last one is left out
    moments = values.new_zeros(rows, _MOMENTS).index_add(0, groups, values)
    bins = len(_BINS)
    at = groups * bins + _BINS.of(size, torch.float32)
    counts = size.new_zeros(rows * bins).index_add(0, at, torch.ones_like(size))
    return torch.cat([moments, counts.reshape(rows, bins)], 1)[:-1]


def mismatch_metrics(sums: np.ndarray) -> dict[str, float]:
    """Of each of GROUPS that has tokens: their count, means and a quantile of |log r|, and ESS.

    `sums`: those of `mismatch_sums` of all micro-batches and ranks.
    """
    out = {}
    tokens = sums[:, _MOMENTS:].sum(1)
    for name, row, n in zip(GROUPS, sums, tokens):
        if n:
            size, square, ratio, squared = row[:_MOMENTS]
            out[f"mismatch/{name}/tokens"] = float(n)
            out[f"mismatch/{name}/mean_abs"] = float(size / n)
            out[f"mismatch/{name}/mean_square"] = float(square / n)
            out[f"mismatch/{name}/p99"] = _BINS.quantile(row[_MOMENTS:], 0.99)
            out[f"mismatch/{name}/ess"] = float(ratio**2 / (n * squared))
    squares, everyone = sums[: len(AGES), 1], tokens[: len(AGES)].sum()
    if tokens[0] and squares.sum():
        arithmetic, whole = squares[0] / tokens[0], squares.sum() / everyone
        out["mismatch/age_share"] = float(max(0.0, 1 - arithmetic / whole))
    return out
