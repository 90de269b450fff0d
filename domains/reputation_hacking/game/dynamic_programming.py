"""The exact optimum by backward induction, and how far-sighted agents shift it.

Every evaluation measures a policy's distance from `Optimal(solve(params))`, the command `optimum` prints it.
With y the net value of a SIGNAL plus the price of HELP, the choice at x = (t, u, f, d, tau) is HELP iff the
effort it saves is worth more than y: V_T = 0, V_t = max(Q_other, Q_HELP - y),
Q_act(x) = E[-w·e + V_{t+1}(x')], w = 1-a (Bellman 1957).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from domains.reputation_hacking.game.dynamics import HELP, Episodes
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import Policy, better_other

NODES = 5
"""Gauss-Hermite nodes for a normal variable."""


@dataclass(frozen=True)
class Grid:
    """Numbers of grid points; progress is exact."""

    fatigue: int = 49
    difficulty: int = 13
    trend: int = 7


DEFAULT_GRID = Grid()


@dataclass(frozen=True)
class Axes:
    """The grid of one game: float64 values of each axis."""

    f: np.ndarray
    d: np.ndarray
    tau: np.ndarray

    @classmethod
    def of(cls, p: Params, grid: Grid) -> "Axes":
        spread = 4.0 * p.trend_std
        return cls(
            f=np.linspace(0.0, _reachable_fatigue(p), grid.fatigue),
            d=np.linspace(p.d_min, p.d_max, grid.difficulty) if p.d_max > p.d_min else np.array([p.d_min]),
            tau=np.linspace(-spread, spread, grid.trend) if spread > 0 else np.zeros(1),
        )


def _reachable_fatigue(p: Params) -> float:
    """The highest fatigue within five standard deviations of noise, rounded up to a multiple of 0.4."""
    noise = 5.0 * p.noise_std
    rested = max(p.fatigue_threshold, 0.0)
    top = rested + p.fatigue_gain * (p.d_max + p.fatigue_amplifier * rested + noise)
    leak = p.fatigue_recovery - p.fatigue_gain * p.fatigue_amplifier
    if leak > 0:
        top = min(top, p.fatigue_gain * (p.d_max + noise) / leak)
    return min(p.fatigue_max, float(np.ceil(max(top, 0.4) / 0.4 - 1e-9)) * 0.4)


def _interpolation(axis: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Matrix [len(points), len(axis)] of linear interpolation weights, constant beyond the ends."""
    weights = np.zeros((len(points), len(axis)))
    rows = np.arange(len(points))
    if len(axis) == 1:
        weights[:, 0] = 1.0
        return weights
    place = np.clip(np.interp(points, axis, np.arange(len(axis))), 0, len(axis) - 1)
    low = np.minimum(place.astype(int), len(axis) - 2)
    weights[rows, low] = 1.0 - (place - low)
    weights[rows, low + 1] = place - low
    return weights


def _normal_nodes(std: float) -> Iterator[tuple[float, float]]:
    """(value, probability) pairs of Gauss-Hermite quadrature for N(0, std)."""
    points, weights = np.polynomial.hermite_e.hermegauss(NODES)
    yield from zip((std * points).tolist(), (weights / weights.sum()).tolist())


def _step_operators(p: Params, axes: Axes, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """(expected effort [D, F], transition of fatigue [D, F, F]) of a worked step."""
    effort = np.zeros((len(axes.d), len(axes.f)))
    move = np.zeros((len(axes.d), len(axes.f), len(axes.f)))
    for noise, probability in _normal_nodes(p.noise_std):
        for i, d in enumerate(axes.d):
            e = np.maximum(0.0, d + p.fatigue_amplifier * axes.f + noise) * factor
            after = np.clip(axes.f + p.fatigue_gain * e - p.fatigue_recovery * axes.f, 0.0, p.fatigue_max)
            effort[i] += probability * e
            move[i] += probability * _interpolation(axes.f, after)
    return effort, move


def _drift_operator(p: Params, axes: Axes) -> np.ndarray:
    """Expectation over the next task: matrix [D·Ta, D·Ta] from (d, tau) to the values at (d', tau')."""
    d, tau = (axis.ravel() for axis in np.meshgrid(axes.d, axes.tau, indexing="ij"))
    operator = np.zeros((d.size, d.size))
    for noise, probability in _normal_nodes(p.trend_std):
        later = p.trend_momentum * tau + noise
        in_d = _interpolation(axes.d, np.clip(d + later, p.d_min, p.d_max))
        in_tau = _interpolation(axes.tau, later)
        operator += probability * (in_d[:, :, None] * in_tau[:, None, :]).reshape(d.size, -1)
    return operator


@dataclass(frozen=True)
class Solution:
    """What HELP is worth more than its alternative."""

    axes: Axes
    advantage: np.ndarray
    """float32 [T, D, F, U, Ta]: Q_HELP - y - Q_other."""


class Backup:
    """One step back in time over a grid, for values float64 [D, F, U, Ta] of the state after the step."""

    def __init__(self, p: Params, axes: Axes) -> None:
        self.params = p
        self.shape = (len(axes.d), len(axes.f), p.task_units, len(axes.tau))
        self.resting = axes.f >= p.fatigue_threshold
        self._rest = _interpolation(axes.f, axes.f * (1.0 - p.rest_decay))
        self._alone = _step_operators(p, axes, 1.0)
        self._helped = _step_operators(p, axes, 1.0 - p.help_strength)
        self._drift = _drift_operator(p, axes)

    def __call__(self, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """E[-w·e + value] of a step alone and of one under HELP, whose price is not yet taken."""
        p, shape = self.params, self.shape
        fresh = value[:, :, 0, :].transpose(1, 0, 2).reshape(shape[1], -1) @ self._drift.T
        new_task = fresh.reshape(shape[1], shape[0], shape[3]).transpose(1, 0, 2)
        idle = np.einsum("fg,dgut->dfut", self._rest, value, optimize=True)
        q = []
        for (effort, move), units in ((self._alone, p.work_units), (self._helped, p.help_work_units)):
            after = np.repeat(new_task[:, :, None, :], p.task_units, 2)
            if units < p.task_units:
                after[:, :, : p.task_units - units] = value[:, :, units:]
            moved = np.matmul(move, after.reshape(shape[0], shape[1], -1)).reshape(shape)
            worked = moved - p.effort_weight * effort[:, :, None, None]
            q.append(np.where(self.resting[None, :, None, None], idle, worked))
        return q[0], q[1]


@lru_cache(maxsize=32)
def _solve(p: Params, y: float, grid: Grid) -> Solution:
    axes = Axes.of(p, grid)
    backup = Backup(p, axes)
    value = np.zeros(backup.shape)
    advantage = np.zeros((p.T, *backup.shape), dtype=np.float32)
    for t in reversed(range(p.T)):
        alone, helped = backup(value)
        advantage[t] = helped - y - alone
        value = np.maximum(alone, helped - y)
    return Solution(axes, advantage)


def solve(params: Params, grid: Grid = DEFAULT_GRID) -> Solution:
    """The optimum of the plain game; about half a second, kept for parameters that make the same choices."""
    blank = Params()
    kept = params.but(l0=0.0, c_signal=blank.c_signal, c_help=blank.c_help, signal_strength=1.0)
    given_up = max(params.net_signal_value, 0.0) + params.c_help  # y: by a step of HELP
    return _solve(kept, round(given_up, 12), grid)


class Optimal(Policy):
    """Acts by the advantage table: interpolated in fatigue, nearest difficulty and trend."""

    name = "optimum"

    def __init__(self, solution: Solution, *, observed_only: bool = False) -> None:
        """`observed_only`: take the hidden trend as 0."""
        self.solution, self.observed_only = solution, observed_only

    def help_advantage(self, episodes: Episodes) -> np.ndarray:
        """float64 [N]: value of HELP over its alternative in the coming step."""
        tau = np.zeros_like(episodes.tau) if self.observed_only else episodes.tau
        return looked_up(self.solution.axes, self.solution.advantage[episodes.t], episodes, tau)

    def act(self, episodes: Episodes, observation: np.ndarray) -> np.ndarray:
        help_now = (self.help_advantage(episodes) > 0) & episodes.working
        return np.where(help_now, HELP, better_other(episodes.params))


def looked_up(axes: Axes, table: np.ndarray, episodes: Episodes, tau: np.ndarray) -> np.ndarray:
    """float64 [N]: `table` [D, F, U, Ta] where N episodes are, interpolated in fatigue, else the nearest."""
    d, trend = _nearest(axes.d, episodes.d), _nearest(axes.tau, tau)
    place = np.clip(np.interp(episodes.f, axes.f, np.arange(len(axes.f))), 0, len(axes.f) - 1)
    low = np.minimum(place.astype(int), len(axes.f) - 2)
    share = place - low
    below, above = table[d, low, episodes.u, trend], table[d, low + 1, episodes.u, trend]
    return (1.0 - share) * below + share * above


def _nearest(axis: np.ndarray, values: np.ndarray) -> np.ndarray:
    if len(axis) == 1:
        return np.zeros(len(values), dtype=int)
    step = axis[1] - axis[0]
    return np.clip(np.rint((values - axis[0]) / step).astype(int), 0, len(axis) - 1)
