"""How a number of tokens is distributed: counted in bins on the device, quantiles of it on the host.

Called by the metrics of a step, for importance ratios and for mismatches: counts can be added over
micro-batches and ranks, quantiles cannot.
"""

import numpy as np
import torch

from pipelinerl.finetune.rl.losses.base import LOG_RATIO_BOUND


class Bins:
    """Bins between fixed edges, and one beyond each end, which counts as its edge (the first as `lowest`)."""

    def __init__(self, edges: np.ndarray, lowest: float) -> None:
        self.edges = edges
        self._places = np.concatenate([[lowest], edges, edges[-1:]])
        # Copied to a device once, because a copy would wait for it.
        self._on: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    def __len__(self) -> int:
        return len(self.edges) + 1

    def of(self, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """int64: the bin of each value, with edges of this type."""
        key = dtype, values.device
        if key not in self._on:
            self._on[key] = torch.as_tensor(self.edges, dtype=dtype, device=values.device)
        return torch.bucketize(values, self._on[key])

    def quantile(self, counts: np.ndarray, share: float) -> float:
        """From counts per bin, of which some is not 0; linear within a bin."""
        reached = np.concatenate([[0.0], np.cumsum(counts)]) / counts.sum()
        at = min(max(int(np.searchsorted(reached, share)) - 1, 0), len(counts) - 1)
        inside = (share - reached[at]) / max(reached[at + 1] - reached[at], 1e-12)
        return float(self._places[at] + inside * (self._places[at + 1] - self._places[at]))


_HALF = np.geomspace(1e-5, LOG_RATIO_BOUND, 120)
_EDGES = np.concatenate([-_HALF[::-1], _HALF])
LOG_RATIO_BINS = Bins(_EDGES, _EDGES[0])
"""Of the log importance ratio, each 13 % of its distance from 0 wide; tokens with ratio 1 share one."""
RATIO_PERCENTILES = (1, 5, 50, 95, 99)


@torch.no_grad()
def ratio_histogram(log_ratio_N: torch.Tensor) -> torch.Tensor:
    """float32 `[len(LOG_RATIO_BINS)]`: tokens by log importance ratio, not clipped."""
    bins = LOG_RATIO_BINS.of(log_ratio_N, log_ratio_N.dtype)
    return log_ratio_N.new_zeros(len(LOG_RATIO_BINS)).index_add(0, bins, torch.ones_like(log_ratio_N))


def ratio_quantiles(counts: np.ndarray) -> dict[str, float]:
    """Quantiles of the importance ratio from the counts of `ratio_histogram`; none of no token."""
    if not counts.sum():
        return {}
    quantiles = {one: LOG_RATIO_BINS.quantile(counts, one / 100) for one in RATIO_PERCENTILES}
    return {f"rl/ratio_new_old_p{one:02d}": float(np.exp(value)) for one, value in quantiles.items()}
