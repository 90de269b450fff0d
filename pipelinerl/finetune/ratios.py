"""How importance ratios of tokens are distributed: counted on the device, quantiles of it on the host.

Called by the metrics of a step: counts can be added over micro-batches and ranks, quantiles cannot.
"""

from functools import lru_cache

import numpy as np
import torch

from pipelinerl.finetune.rl.losses.base import LOG_RATIO_BOUND

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
        out[f"rl/ratio_new_old_p{percent:02d}"] = float(np.exp(place))
    return out
