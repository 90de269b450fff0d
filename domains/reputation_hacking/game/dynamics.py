"""The core: noise drawn before an episode, and one step of the game, for a single episode or N in lock step.

Environments, policies, evaluation and the language model's rollouts all play `Episodes`. Its step is written
once: on a `Tape` the state is Python numbers, with which a single episode is ten times as fast as with numpy;
on `Tapes` it is arrays. Operations and their order are the same in float64, so both agree bit for bit.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from domains.reputation_hacking.game.params import Params

DO_NOTHING, HELP, SIGNAL = 0, 1, 2
ACTIONS = ("DO_NOTHING", "HELP", "SIGNAL")

TAPE_KEY = 7
UNKNOWN_SEED = -1
"""`tape_seed` of noise that came from no seed of its own."""


@dataclass(frozen=True, kw_only=True)
class Tape:
    """The noise of one episode of T steps that could finish fewer than Z tasks."""

    d0: Any
    """Difficulty of the first task before its drift."""
    z: np.ndarray
    """float64 [Z]: `z[k]` is the drift at the k-th task."""
    eps: np.ndarray
    """float64 [T]: `eps[t]` is the noise of step t's effort."""
    chance: Any = 0.5
    """Uniform in [0, 1), for reward variants that decide by chance."""
    seed: Any = UNKNOWN_SEED

    @classmethod
    def from_seed(cls, params: Params, seed: int) -> "Tape":
        """The tape of a seed: children of SeedSequence([seed, 7]) for tasks, steps and chance."""
        tasks, steps, chance = (
            np.random.default_rng(child) for child in np.random.SeedSequence([seed, TAPE_KEY]).spawn(3)
        )
        return Tape(
            d0=float(tasks.uniform(params.d_min, params.d_max)),
            z=tasks.normal(0.0, params.trend_std, params.max_tasks),
            eps=steps.normal(0.0, params.noise_std, params.T),
            chance=float(chance.random()),
            seed=int(seed),
        )

    @classmethod
    def quiet(cls, params: Params, d0: float = 0.5) -> "Tape":
        """A tape without noise."""
        return Tape(d0=d0, z=np.zeros(params.max_tasks), eps=np.zeros(params.T))


class Tapes(Tape):
    """The tapes of N episodes: every field with a last axis of N, d0, chance and seed being arrays [N]."""

    def __len__(self) -> int:
        return len(self.d0)

    @classmethod
    def stack(cls, tapes: Iterable[Tape]) -> "Tapes":
        rows = list(tapes)
        return Tapes(
            d0=np.array([tape.d0 for tape in rows]),
            z=np.array([tape.z for tape in rows]).T.copy(),
            eps=np.array([tape.eps for tape in rows]).T.copy(),
            chance=np.array([tape.chance for tape in rows]),
            seed=np.array([tape.seed for tape in rows], dtype=np.int64),
        )

    @classmethod
    def from_seeds(cls, params: Params, seeds: Iterable[int]) -> "Tapes":
        return cls.stack(Tape.from_seed(params, int(seed)) for seed in seeds)

    @classmethod
    def draw(cls, params: Params, count: int, rng: np.random.Generator) -> "Tapes":
        """`count` tapes in bulk from one generator; about a hundred times as fast as from seeds."""
        return Tapes(
            d0=rng.uniform(params.d_min, params.d_max, count),
            z=params.trend_std * rng.standard_normal((params.max_tasks, count)),
            eps=params.noise_std * rng.standard_normal((params.T, count)),
            chance=rng.random(count),
            seed=np.full(count, UNKNOWN_SEED, dtype=np.int64),
        )

    def tile(self, copies: int) -> "Tapes":
        """`copies` blocks of the same tapes, one after the other."""
        return Tapes(**{name: np.tile(values, copies) for name, values in vars(self).items()})

    def one(self, index: int) -> Tape:
        """The tape of episode `index`."""
        return Tape(
            d0=float(self.d0[index]),
            z=self.z[:, index].copy(),
            eps=self.eps[:, index].copy(),
            chance=float(self.chance[index]),
            seed=int(self.seed[index]),
        )


Value = Any
"""A number of one episode, or an array [N] of N of them."""


class _Numbers:
    """What a step needs beside arithmetic, for one episode."""

    any: Any = bool
    rows: Any = list

    @staticmethod
    def clip(value: Value, low: float, high: float) -> Value:
        return low if value < low else high if value > high else value

    @staticmethod
    def pick(condition: Value, yes: Value, no: Value) -> Value:
        return yes if condition else no


class _Arrays:
    """The same for N episodes."""

    any: Any = staticmethod(np.count_nonzero)
    rows: Any = staticmethod(np.concatenate)
    pick: Any = staticmethod(np.where)

    @staticmethod
    def clip(value: Value, low: float, high: float) -> Value:
        return np.minimum(np.maximum(value, low), high)


class Episodes:
    """One episode on a `Tape`, or N in lock step on `Tapes` without a loop over them.

    State: time t, progress u, fatigue f, difficulty d, effort `e` of the last step and `effort` of all.
    `actions` int8 and `works` bool are [T] or [T, N]. Raises ValueError for noise that is too short.
    """

    def __init__(self, params: Params, tape: Tape) -> None:
        for name, found, wanted in (("eps", tape.eps, params.T), ("z", tape.z, params.max_tasks)):
            if len(found) < wanted:
                raise ValueError(f"tape.{name} has {len(found)} values; these parameters need {wanted}")
        count = len(tape) if isinstance(tape, Tapes) else None
        shape = () if count is None else (count,)
        self.params = params
        self.tape: Any = tape
        self._on: Any = _Numbers if count is None else _Arrays
        self._eps: Any = tape.eps.tolist() if count is None else tape.eps
        self._helped, self._rested = 1.0 - params.help_strength, 1.0 - params.rest_decay
        self._seen = (*shape, 4)
        self.t = 0
        self.u: Value = 0 if count is None else np.zeros(count, dtype=np.int64)
        self.f: Value = 0.0 if count is None else np.zeros(count)
        self.effort: Value = self.f
        self.e: Value = self.f
        self.actions = np.zeros((params.T, *shape), dtype=np.int8)
        self.works = np.zeros((params.T, *shape), dtype=bool)
        # Rows of all tasks one after the other; the k-th task of episode i is at place k * N + i.
        self._count = count or 1
        self._place: Value = 0 if count is None else np.arange(count)
        self._trends, self._difficulties = self._drift(tape.z.tolist() if count is None else tape.z)
        self.d: Value = self._difficulties[self._place]

    def _drift(self, z: Any) -> tuple[Any, Any]:
        """(trend, difficulty) of every task. Difficulty moves at a new task only, whatever was done."""
        p = self.params
        trends = [z[0]]
        difficulties = [self._on.clip(self.tape.d0 + z[0], p.d_min, p.d_max)]
        for drift in z[1 : p.max_tasks]:
            trends.append(p.trend_momentum * trends[-1] + drift)
            difficulties.append(self._on.clip(difficulties[-1] + trends[-1], p.d_min, p.d_max))
        return self._on.rows(trends), self._on.rows(difficulties)

    def __len__(self) -> int:
        return self._count

    @property
    def k(self) -> Value:
        """Finished tasks."""
        return self._place // self._count

    @property
    def tau(self) -> Value:
        """Trend of the difficulty, which no observation shows."""
        return self._trends[self._place]

    @property
    def working(self) -> Value:
        """Whether each Worker will work in the next step."""
        return self.f < self.params.fatigue_threshold

    def step(self, action: Value) -> None:
        """One step; `action` is a checked integer, or integers [N]."""
        p, f, clip, pick = self.params, self.f, self._on.clip, self._on.pick
        works, helped = f < p.fatigue_threshold, action == HELP
        e = clip(self.d + p.fatigue_amplifier * f + self._eps[self.t], 0.0, math.inf)
        e = e * pick(helped, self._helped, 1.0) * works
        tired = clip(f + p.fatigue_gain * e - p.fatigue_recovery * f, 0.0, p.fatigue_max)
        self.f = pick(works, tired, f * self._rested)
        self.e = e
        self.effort = self.effort + e
        self.u = self.u + pick(helped, p.help_work_units, p.work_units) * works
        finished = self.u >= p.task_units
        if self._on.any(finished):  # what a task was overshot by is lost
            self.u = pick(finished, 0, self.u)
            self._place = self._place + finished * self._count
            self.d = self._difficulties[self._place]
        self.actions[self.t] = action
        self.works[self.t] = works
        self.t += 1

    def observation(self) -> np.ndarray:
        """float32 [4] or [N, 4], a new array: shares of time, task and highest fatigue, and difficulty."""
        p = self.params
        out = np.empty(self._seen, dtype=np.float32)
        columns = out.T
        columns[0] = self.t / p.T
        columns[1] = self.u / p.task_units
        columns[2] = self.f / p.fatigue_max
        columns[3] = self.d
        return out


def played(params: Params, tape: Tape, actions: np.ndarray | int) -> Episodes:
    """Whole episodes of recorded actions: int [T] or [T, N], or one action for all steps."""
    episodes = Episodes(params, tape)
    for row in np.broadcast_to(np.asarray(actions, dtype=np.int8), episodes.actions.shape):
        episodes.step(row)
    return episodes


def effort_without(params: Params, tape: Tape) -> Value:
    """Effort felt on the same tapes when the Assistant does nothing."""
    return played(params, tape, DO_NOTHING).effort
