"""95 % intervals of means and of paired differences, from the values of single problems."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_Z = 1.959963984540054
_RESAMPLES = 4000
# Resampled indices are drawn in blocks so that a thousand problems do not need a gigabyte.
_BLOCK = 2_000_000


class Interval(NamedTuple):
    """A mean with the limits of its 95 % interval, over `n` values."""

    mean: float
    low: float
    high: float
    n: int


def known(values: Sequence[float | None]) -> np.ndarray:
    """The values that exist, float64 [n]; None and NaN mark problems without one."""
    array = np.array([math.nan if v is None else float(v) for v in values], np.float64)
    return array[~np.isnan(array)]


def wilson(successes: float, n: int) -> Interval:
    """Wilson's score interval of a share (Wilson 1927); ValueError for n = 0."""
    if n <= 0:
        raise ValueError("an interval needs at least one value")
    share = successes / n
    scale = 1 + _Z**2 / n
    centre = (share + _Z**2 / (2 * n)) / scale
    half = _Z / scale * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half), n)


def bootstrap(values: np.ndarray, seed: int = 0) -> Interval:
    """Percentile bootstrap of the mean (4,000 resamples, fixed seed); ValueError for no values."""
    n = len(values)
    if n == 0:
        raise ValueError("an interval needs at least one value")
    rng = np.random.default_rng(seed)
    rows = max(1, _BLOCK // n)
    means = [
        values[rng.integers(0, n, (min(rows, _RESAMPLES - start), n))].mean(axis=1)
        for start in range(0, _RESAMPLES, rows)
    ]
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high), n)


def is_share(values: np.ndarray) -> bool:
    """Whether all values are 0 or 1."""
    return bool(np.isin(values, (0.0, 1.0)).all())


def mean_interval(values: Sequence[float | None]) -> Interval:
    """Wilson for yes/no values, bootstrap for others; ValueError if no value is known."""
    array = known(values)
    return wilson(float(array.sum()), len(array)) if is_share(array) else bootstrap(array)


def paired_difference(before: Sequence[float | None], after: Sequence[float | None]) -> Interval:
    """Mean of after − before over the problems known in both, in the same order, with its interval.

    ValueError if the lengths differ or no problem is known in both.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} values before and {len(after)} after are not the same problems")
    pairs = [(a, b) for a, b in zip(before, after) if a is not None and b is not None]
    return bootstrap(known([b - a for a, b in pairs]))
