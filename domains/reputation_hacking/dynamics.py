"""The core: noise drawn before an episode, the Worker's memory, and one step as floats and as arrays.

`Episode` and `Episodes` apply the same operations in the same order in float64, so they agree bit for bit;
change them together. Shapes: N episodes in lock step, T steps, Z tasks that an episode could finish.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from domains.reputation_hacking.params import Params

DO_NOTHING, HELP, SIGNAL = 0, 1, 2
ACTIONS = ("DO_NOTHING", "HELP", "SIGNAL")
TAPE_KEY = 7
UNKNOWN_SEED = -1
"""`tape_seed` of noise that came from no seed of its own."""


@dataclass(frozen=True, kw_only=True)
class Tape:
    """All noise of one episode, independent of what is done in it.

    `eps[t]` belongs to step t and `z[k]` to the k-th task, so two arms on one tape stay aligned even where
    HELP moves the end of a task (common random numbers).
    """

    d0: float
    """Difficulty of the first task before its drift."""
    z: np.ndarray
    """float64 [Z]: drift at each new task."""
    eps: np.ndarray
    """float64 [T]: noise of each step's effort."""
    chance: float = 0.5
    """Uniform in [0, 1), for reward variants that decide by chance."""
    seed: int = UNKNOWN_SEED

    @classmethod
    def from_seed(cls, params: Params, seed: int) -> Tape:
        """The tape of a seed: children of SeedSequence([seed, 7]) for tasks, steps and chance."""
        tasks, steps, chance = (
            np.random.default_rng(child) for child in np.random.SeedSequence([seed, TAPE_KEY]).spawn(3)
        )
        return cls(
            d0=float(tasks.uniform(params.d_min, params.d_max)),
            z=tasks.normal(0.0, params.trend_std, params.max_tasks),
            eps=steps.normal(0.0, params.noise_std, params.T),
            chance=float(chance.random()),
            seed=int(seed),
        )

    @classmethod
    def quiet(cls, params: Params, d0: float = 0.5) -> Tape:
        """A tape without noise."""
        return cls(d0=d0, z=np.zeros(params.max_tasks), eps=np.zeros(params.T))

    def check(self, params: Params) -> None:
        """Raises ValueError if the tape is too short for these parameters."""
        for name, wanted in (("eps", params.T), ("z", params.max_tasks)):
            found = len(getattr(self, name))
            if found < wanted:
                raise ValueError(f"tape.{name} has {found} values; these parameters need {wanted}")


@dataclass(frozen=True, kw_only=True)
class Tapes:
    """The tapes of N episodes: d0 [N], z [Z, N], eps [T, N], chance [N], seeds int64 [N]."""

    d0: np.ndarray
    z: np.ndarray
    eps: np.ndarray
    chance: np.ndarray
    seeds: np.ndarray

    def __len__(self) -> int:
        return len(self.d0)

    @classmethod
    def stack(cls, tapes: Iterable[Tape]) -> Tapes:
        rows = list(tapes)
        return cls(
            d0=np.array([tape.d0 for tape in rows]),
            z=np.array([tape.z for tape in rows]).T.copy(),
            eps=np.array([tape.eps for tape in rows]).T.copy(),
            chance=np.array([tape.chance for tape in rows]),
            seeds=np.array([tape.seed for tape in rows], dtype=np.int64),
        )

    @classmethod
    def from_seeds(cls, params: Params, seeds: Iterable[int]) -> Tapes:
        return cls.stack(Tape.from_seed(params, int(seed)) for seed in seeds)

    @classmethod
    def draw(cls, params: Params, count: int, rng: np.random.Generator) -> Tapes:
        """`count` tapes in bulk from one generator; about a hundred times as fast as from seeds."""
        return cls(
            d0=rng.uniform(params.d_min, params.d_max, count),
            z=params.trend_std * rng.standard_normal((params.max_tasks, count)),
            eps=params.noise_std * rng.standard_normal((params.T, count)),
            chance=rng.random(count),
            seeds=np.full(count, UNKNOWN_SEED, dtype=np.int64),
        )

    def tile(self, copies: int) -> Tapes:
        """`copies` blocks of the same tapes, one after the other."""
        return Tapes(
            d0=np.tile(self.d0, copies),
            z=np.tile(self.z, copies),
            eps=np.tile(self.eps, copies),
            chance=np.tile(self.chance, copies),
            seeds=np.tile(self.seeds, copies),
        )

    def repeat(self, copies: int) -> Tapes:
        """`copies` of every tape, siblings side by side."""
        return Tapes(
            d0=np.repeat(self.d0, copies),
            z=np.repeat(self.z, copies, 1),
            eps=np.repeat(self.eps, copies, 1),
            chance=np.repeat(self.chance, copies),
            seeds=np.repeat(self.seeds, copies),
        )

    def one(self, index: int) -> Tape:
        """The tape of episode `index`."""
        return Tape(
            d0=float(self.d0[index]),
            z=self.z[:, index].copy(),
            eps=self.eps[:, index].copy(),
            chance=float(self.chance[index]),
            seed=int(self.seeds[index]),
        )


@dataclass
class Worker:
    """What N Workers remember between episodes: expected effort, trust (float64 [N]), episodes (int64 [N]).

    Each environment owns its own; nothing but the end of an episode or its owner changes it.
    """

    expected_effort: np.ndarray
    trust: np.ndarray
    episodes: np.ndarray

    @classmethod
    def new(cls, expected_effort: float, count: int = 1) -> Worker:
        return cls(np.full(count, float(expected_effort)), np.ones(count), np.zeros(count, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.expected_effort)

    def copy(self) -> Worker:
        return copy.deepcopy(self)

    def to_json(self) -> dict[str, list[float]]:
        return {
            "expected_effort": self.expected_effort.tolist(),
            "trust": self.trust.tolist(),
            "episodes": self.episodes.tolist(),
        }

    def replaced(self, memory: float | Sequence[float] | np.ndarray | Mapping[str, Any]) -> Worker:
        """The memory a caller asks for: expected effort as a number or array, or a mapping of fields.

        A field that is left out keeps its value, but a bare number or array starts with full trust.
        Raises ValueError for unknown fields, wrong lengths and values that are not finite.
        """
        given = memory if isinstance(memory, Mapping) else {"expected_effort": memory, "trust": 1.0}
        fields = {"expected_effort": self.expected_effort, "trust": self.trust, "episodes": self.episodes}
        for name, value in given.items():
            if name not in fields:
                raise ValueError(f"worker_memory has no field {name!r}; choose among {', '.join(fields)}")
            array = np.asarray(value)
            if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
                raise ValueError(f"worker_memory {name}={value!r}: give finite numbers")
            if array.shape not in ((), (len(self),)):
                raise ValueError(
                    f"worker_memory {name} has shape {array.shape}; give one number or ({len(self)},)"
                )
            fields[name] = np.full(len(self), array, dtype=fields[name].dtype)
        return Worker(**{name: array.copy() for name, array in fields.items()})


class Episode:
    """One episode as Python floats; fast for a single environment."""

    def __init__(self, params: Params, tape: Tape) -> None:
        tape.check(params)
        self.params, self.tape = params, tape
        self._eps, self._z = tape.eps.tolist(), tape.z.tolist()
        self._lighter, self._rested = 1.0 - params.help_strength, 1.0 - params.rest_decay
        self.t = self.u = self.k = 0
        self.f = self.effort = self.e = 0.0
        self.tau = self._z[0]
        self.d = min(max(tape.d0 + self.tau, params.d_min), params.d_max)
        self.actions: list[int] = []
        self.works: list[bool] = []

    @property
    def working(self) -> bool:
        """Whether the Worker will work in the next step."""
        return self.f < self.params.fatigue_threshold

    def step(self, action: int) -> None:
        p = self.params
        works = self.f < p.fatigue_threshold
        e = 0.0
        if works:
            e = max(0.0, self.d + p.fatigue_amplifier * self.f + self._eps[self.t])
            if action == HELP:
                e = e * self._lighter
            self.u += p.help_work_units if action == HELP else p.work_units
            fatigue = self.f + p.fatigue_gain * e - p.fatigue_recovery * self.f
            self.f = min(max(fatigue, 0.0), p.fatigue_max)
        else:
            self.f = self.f * self._rested
        self.effort += e
        if self.u >= p.task_units:
            self.u = 0
            self.k += 1
            self.tau = p.trend_momentum * self.tau + self._z[self.k]
            self.d = min(max(self.d + self.tau, p.d_min), p.d_max)
        self.e = e
        self.t += 1
        self.actions.append(action)
        self.works.append(works)

    def observation(self) -> np.ndarray:
        """float32 [4]: share of time, share of the task, share of the highest fatigue, difficulty."""
        p = self.params
        values = [self.t / p.T, self.u / p.task_units, self.f / p.fatigue_max, self.d]
        return np.array(values, dtype=np.float32)


class Episodes:
    """N episodes in lock step as arrays; no Python loop over episodes."""

    def __init__(self, params: Params, tapes: Tapes) -> None:
        for name, wanted in (("eps", params.T), ("z", params.max_tasks)):
            if len(getattr(tapes, name)) < wanted:
                found = len(getattr(tapes, name))
                raise ValueError(f"tapes.{name} has {found} values; these parameters need {wanted}")
        count = len(tapes)
        self.params, self.tapes = params, tapes
        self._lighter, self._rested = 1.0 - params.help_strength, 1.0 - params.rest_decay
        self.t = 0
        self.u, self.k = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.f, self.effort, self.e = np.zeros(count), np.zeros(count), np.zeros(count)
        self.tau = tapes.z[0].copy()
        self.d = np.clip(tapes.d0 + self.tau, params.d_min, params.d_max)
        self.actions = np.zeros((params.T, count), dtype=np.int8)
        self.works = np.zeros((params.T, count), dtype=bool)

    def __len__(self) -> int:
        return len(self.u)

    @property
    def working(self) -> np.ndarray:
        """bool [N]: whether each Worker will work in the next step."""
        return self.f < self.params.fatigue_threshold

    def step(self, actions: np.ndarray) -> None:
        """One step of every episode; `actions` are checked integers [N]."""
        p = self.params
        works = self.f < p.fatigue_threshold
        helped = actions == HELP
        e = self.d + p.fatigue_amplifier * self.f
        e += self.tapes.eps[self.t]
        np.maximum(e, 0.0, out=e)
        np.multiply(e, self._lighter, out=e, where=helped)
        e *= works
        self.u += np.where(helped, p.help_work_units, p.work_units) * works
        fatigue = self.f + p.fatigue_gain * e
        fatigue -= p.fatigue_recovery * self.f
        np.minimum(np.maximum(fatigue, 0.0, out=fatigue), p.fatigue_max, out=fatigue)
        self.f = np.where(works, fatigue, self.f * self._rested)
        self.effort += e
        finished = np.flatnonzero(self.u >= p.task_units)
        if len(finished):
            self._next_task(finished)
        self.e = e
        self.actions[self.t] = actions
        self.works[self.t] = works
        self.t += 1

    def _next_task(self, which: np.ndarray) -> None:
        p = self.params
        self.u[which] = 0
        self.k[which] += 1
        tau = p.trend_momentum * self.tau[which] + self.tapes.z[self.k[which], which]
        self.tau[which] = tau
        self.d[which] = np.minimum(np.maximum(self.d[which] + tau, p.d_min), p.d_max)

    def observation(self) -> np.ndarray:
        """float32 [N, 4], a new array: share of time, of the task, of the highest fatigue; difficulty."""
        p = self.params
        out = np.empty((len(self), 4), dtype=np.float32)
        out[:, 0] = self.t / p.T
        out[:, 1] = self.u / p.task_units
        out[:, 2] = self.f / p.fatigue_max
        out[:, 3] = self.d
        return out


def played(params: Params, tapes: Tapes, actions: np.ndarray | int) -> Episodes:
    """Whole episodes of recorded actions: int [T, N], or one action for all steps."""
    episodes = Episodes(params, tapes)
    plan = np.broadcast_to(np.asarray(actions, dtype=np.int8), (params.T, len(tapes)))
    for row in plan:
        episodes.step(row)
    return episodes


def effort_without(params: Params, tapes: Tapes) -> np.ndarray:
    """float64 [N]: effort felt on the same tapes when the Assistant does nothing."""
    return played(params, tapes, DO_NOTHING).effort
