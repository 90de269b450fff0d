"""95 % intervals of benchmarks: over held-out problems, paired, and over training seeds. Pure.

`benchmarks.experiment` takes both, because an interval over problems does not show how much runs differ.
"""

import math
from collections.abc import Sequence

import numpy as np

from pipelinerl.observe.intervals import Interval, bootstrap

Column = Sequence[float | None]
"""A metric's value of each held-out problem; None where it does not apply."""
Paired = tuple[Interval, Interval, Interval]
"""Before, after, difference."""
# Two-sided 95 % quantiles of Student's t by degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def paired(before: Sequence[Column], after: Sequence[Column], own_problems: bool = False) -> Paired:
    """Before, after and difference; a column for each seed, float or None for each problem.

    Seeds were asked the same problems in the same order, unless each has its own (`own_problems`). A shared
    problem counts once, with its mean over the seeds: what one seed's model solves, another's often does, so
    their answers to it are no independent draws. Problems without a value in some seed take the others'.
    """
    if own_problems:
        before, after = ([[value for column in end for value in column]] for end in (before, after))
    table = np.array([before, after], np.float64)  # None becomes NaN; [2, seeds, problems]
    table[:, np.isnan(table).any(axis=0)] = np.nan
    means = np.stack([_mean_by_problem(end) for end in table], axis=1)
    return bootstrap(means[:, 0]), bootstrap(means[:, 1]), bootstrap(means[:, 1] - means[:, 0])


def _mean_by_problem(table: np.ndarray) -> np.ndarray:
    """Means over seeds, float64 [problems]; problems of which none has a value are left out."""
    return np.nanmean(table[:, ~np.isnan(table).all(axis=0)], axis=0)


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
