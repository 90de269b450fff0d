"""Intervals over training seeds: how much runs differ, which intervals over problems do not show. Pure."""

import math
from collections.abc import Sequence

import numpy as np

# Two-sided 95 % quantiles of Student's t by degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def _quantile(seeds: int) -> float:
    return _T[seeds - 2] if seeds - 2 < len(_T) else 1.96


def t_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and half width of the 95 % t interval; None for one value."""
    array = np.asarray(values, np.float64)
    if len(array) < 2:
        return float(array.mean()), None
    return float(array.mean()), float(_quantile(len(array)) * array.std(ddof=1) / math.sqrt(len(array)))


def ratio_of_means(
    numerators: Sequence[float], denominators: Sequence[float]
) -> tuple[float, float | None, float | None]:
    """Ratio of two means over the same seeds with its 95 % interval (Fieller 1954); None where it has no end.

    The interval holds every r for which the mean of `numerator - r * denominator` is within its own t
    interval of 0, so it also holds for few seeds, where resampling them would only find the extremes.
    """
    above, below = (np.asarray(values, np.float64) for values in (numerators, denominators))
    a, b, seeds = above.mean(), below.mean(), len(above)
    ratio = float(a / b)
    if seeds < 2:
        return ratio, None, None
    spread = np.cov(above, below) * _quantile(seeds) ** 2 / seeds
    square, linear, constant = b**2 - spread[1, 1], a * b - spread[0, 1], a**2 - spread[0, 0]
    if square <= 0:  # the denominator may be 0
        return ratio, None, None
    root = math.sqrt(max(0.0, linear**2 - square * constant))  # below 0 by rounding only: `ratio` is inside
    low, high = ((linear + sign * root) / square for sign in (-1, 1))
    return ratio, float(low), float(high)
