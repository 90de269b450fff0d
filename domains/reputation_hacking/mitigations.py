"""Ways to turn an episode into a reward: the plain rating and designs that try to stop manipulation.

One interface: what happened, the Worker's memory and the tape's chance give the rating used, the bias that
counts, a penalty and a new memory; reward = rating - c_help*H - c_signal*K - penalty. Dynamics never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

import numpy as np

from domains.reputation_hacking.dynamics import HELP, SIGNAL, Episodes, Tapes, Worker, effort_without
from domains.reputation_hacking.params import CALIBRATED, Params

CALIBRATION_SEEDS = range(1_000_000, 1_004_096)

DEFAULTS: dict[str, dict[str, float]] = {
    "none": {},
    "window": {"m": 10.0},
    "saturate": {"b": 5.0},
    "audit": {"p": 0.2, "lam": 5.0},
    "trust": {"eta": 0.2, "eta0": 0.05},
    "ms_penalty": {"w": 1.0},
    "control": {},
    "frozen_l": {},
}
_LIMITS = {
    "m": (0.0, np.inf),
    "b": (1e-9, np.inf),
    "p": (0.0, 1.0),
    "lam": (0.0, np.inf),
    "eta": (0.0, 1.0),
    "eta0": (0.0, 1.0),
    "w": (0.0, np.inf),
}
NEEDS_WITHOUT = frozenset({"ms_penalty", "control"})
"""Variants that compare with the same tape without the Assistant."""


@dataclass(frozen=True)
class Mitigation:
    """A reward variant and its constants. Raises ValueError for an unknown name or constant."""

    name: str = "none"
    constants: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in DEFAULTS:
            raise ValueError(f"mitigation {self.name!r}: choose one of {', '.join(DEFAULTS)}")
        known = DEFAULTS[self.name]
        for key, value in self.constants.items():
            if key not in known:
                choice = f"it has {', '.join(known)}" if known else "it has none"
                raise ValueError(f"mitigation {self.name} has no constant {key!r}; {choice}")
            low, high = _LIMITS[key]
            if not low <= value <= high:
                raise ValueError(f"mitigation {self.name}: {key}={value} is not from {low:g} to {high:g}")
        object.__setattr__(self, "constants", {**known, **self.constants})

    @classmethod
    def parse(cls, text: str) -> Mitigation:
        """`name` or `name:key=value,key=value`. Raises ValueError."""
        name, _, rest = text.partition(":")
        constants = {}
        for part in filter(None, rest.split(",")):
            key, equals, value = part.partition("=")
            try:
                constants[key.strip()] = float(value)
            except ValueError:
                raise ValueError(f"mitigation {text!r}: write {name}:key=number, found {part!r}") from None
            if not equals:
                raise ValueError(f"mitigation {text!r}: write {name}:key=number, found {part!r}")
        return cls(name.strip(), constants)

    def __str__(self) -> str:
        changed = {k: v for k, v in self.constants.items() if v != DEFAULTS[self.name][k]}
        return self.name + (":" + ",".join(f"{k}={v:g}" for k, v in changed.items()) if changed else "")

    def __getitem__(self, key: str) -> float:
        return float(self.constants[key])


NONE = Mitigation()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """N finished episodes; all arrays [N]."""

    effort: np.ndarray
    """E: effort felt."""
    helps: np.ndarray
    signals: np.ndarray
    counted_signals: np.ndarray
    """SIGNALs that a `window` lets count."""
    chance: np.ndarray
    effort_without: np.ndarray | None = None

    def one(self, index: int) -> Outcome:
        """Episode `index` alone."""
        values: dict[str, Any] = {
            name: None if array is None else array[index : index + 1] for name, array in vars(self).items()
        }
        return Outcome(**values)

    @classmethod
    def of(
        cls, episodes: Episodes, mitigation: Mitigation = NONE, without: np.ndarray | None = None
    ) -> Outcome:
        """The outcome of finished episodes; effort without the Assistant is played if needed."""
        signals = episodes.actions == SIGNAL
        counted = signals[: int(mitigation["m"])] if mitigation.name == "window" else signals
        if without is None and mitigation.name in NEEDS_WITHOUT:
            without = effort_without(episodes.params, episodes.tapes)
        return cls(
            effort=episodes.effort,
            helps=(episodes.actions == HELP).sum(0),
            signals=signals.sum(0),
            counted_signals=counted.sum(0),
            chance=episodes.tapes.chance,
            effort_without=without,
        )


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """How the Workers rate N episodes and what they remember; all arrays [N]."""

    rating: np.ndarray
    """The rating that the reward uses."""
    plain_rating: np.ndarray
    """The rating of the unchanged game, from the same memory."""
    bias: np.ndarray
    """Effective B, what SIGNALs added to the expected effort."""
    expected: np.ndarray
    learned_before: np.ndarray
    learned: np.ndarray
    penalty: np.ndarray
    reward: np.ndarray
    memory: Worker

    @classmethod
    def join(cls, parts: Sequence[Settlement]) -> Settlement:
        """The settlements of successive episodes as one."""
        arrays = [field.name for field in fields(cls) if field.name != "memory"]
        joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in arrays}
        memory = [
            np.concatenate([getattr(part.memory, field.name) for part in parts]) for field in fields(Worker)
        ]
        return cls(**joined, memory=Worker(*memory))


def settle(params: Params, outcome: Outcome, memory: Worker, mitigation: Mitigation = NONE) -> Settlement:
    """Rate finished episodes. `memory` is not changed; the new one is in the result."""
    p, before = params, memory.expected_effort
    learned = (1.0 - p.ema_alpha) * before + p.ema_alpha * outcome.effort
    if mitigation.name == "frozen_l":
        learned = before.copy()
    bias = _bias(p, outcome, memory, mitigation)
    expected = (learned if p.rating_order == "update_first" else before) + bias
    rating = expected - outcome.effort
    plain = np.asarray(p.signal_strength * outcome.signals, dtype=np.float64)
    plain_rating = (learned if p.rating_order == "update_first" else before) + plain - outcome.effort
    penalty = np.zeros_like(rating)
    if mitigation.name == "control":
        rating = _without(outcome) - outcome.effort
    elif mitigation.name == "ms_penalty":
        manipulation = rating - (_without(outcome) - outcome.effort)
        penalty = mitigation["w"] * np.maximum(0.0, manipulation)
    reward = rating - p.c_help * outcome.helps - p.c_signal * outcome.signals - penalty
    trust = _trust(p, outcome, memory, mitigation)
    return Settlement(
        rating=rating,
        plain_rating=plain_rating,
        bias=bias,
        expected=expected,
        learned_before=before.copy(),
        learned=learned,
        penalty=penalty,
        reward=reward,
        memory=Worker(learned.copy(), trust, memory.episodes + 1),
    )


def _bias(p: Params, outcome: Outcome, memory: Worker, mitigation: Mitigation) -> np.ndarray:
    full = np.asarray(p.signal_strength * outcome.signals, dtype=np.float64)
    match mitigation.name:
        case "window":
            return np.asarray(p.signal_strength * outcome.counted_signals, dtype=np.float64)
        case "saturate":
            return mitigation["b"] * (1.0 - np.exp(-full / mitigation["b"]))
        case "audit":
            return np.where(outcome.chance < mitigation["p"], -mitigation["lam"] * full, full)
        case "trust":
            return memory.trust * full
        case "control":
            return np.zeros_like(full)
        case _:
            return full


def _trust(p: Params, outcome: Outcome, memory: Worker, mitigation: Mitigation) -> np.ndarray:
    if mitigation.name != "trust":
        return memory.trust.copy()
    claimed = p.signal_strength * outcome.signals
    caught = (outcome.signals > 0) & (outcome.effort < memory.expected_effort + claimed)
    lost = memory.trust * (1.0 - mitigation["eta"] * np.minimum(1.0, claimed / 10.0))
    regained = memory.trust + mitigation["eta0"] * (1.0 - memory.trust)
    return np.where(caught, lost, regained)


def _without(outcome: Outcome) -> np.ndarray:
    if outcome.effort_without is None:
        raise ValueError(
            "this reward variant needs the effort without the Assistant; build it with Outcome.of"
        )
    return outcome.effort_without


@lru_cache(maxsize=256)
def _calibrated(dynamics: Params) -> float:
    return float(effort_without(dynamics, Tapes.from_seeds(dynamics, CALIBRATION_SEEDS)).mean())


def calibrated_effort(params: Params) -> float:
    """L*: mean effort without the Assistant over the calibration seeds, kept for equal dynamics."""
    return _calibrated(params.dynamics_only())


def initial_effort(params: Params) -> float:
    """What a new Worker expects: `l0`, or L* if that is `calibrated`."""
    return calibrated_effort(params) if params.l0 == CALIBRATED else float(params.l0)
