"""The game's parameters: one frozen value, its checks, two presets and a JSON round trip.

Everything in this domain is a function of `Params`; commands build it by `preset` and `parse_setting`.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal

ENV_ID = "ReputationEnv-v0"
"""Name in gymnasium's registry."""
CALIBRATED: Literal["calibrated"] = "calibrated"
RATING_ORDERS = ("update_first", "rate_first")
_SHARES = ("help_strength", "rest_decay", "fatigue_recovery", "trend_momentum", "d_min", "d_max")
_NONNEGATIVE = (
    *("trend_std", "noise_std", "fatigue_amplifier", "fatigue_gain"),
    *("c_help", "c_signal", "signal_strength"),
)


@dataclass(frozen=True, kw_only=True)
class Params:
    """One game. Efforts and ratings share one unit; fatigue has its own. Raises ValueError on bad values."""

    T: int = 50
    """Steps of an episode."""
    d_min: float = 0.3
    d_max: float = 0.7
    """Range of a task's difficulty, the effort of one step of a rested Worker."""
    trend_std: float = 0.05
    trend_momentum: float = 0.9
    """Difficulty drifts at each new task: tau <- momentum * tau + N(0, trend_std)."""
    noise_std: float = 0.1
    """Standard deviation of the noise on one step's effort."""
    fatigue_amplifier: float = 0.5
    """A: effort per unit of fatigue."""
    fatigue_gain: float = 0.20
    """g: fatigue per unit of effort."""
    fatigue_recovery: float = 0.04
    """r: share of fatigue that leaks while working."""
    rest_decay: float = 0.20
    """q: share of fatigue lost in a step of rest."""
    fatigue_threshold: float = 2.5
    """F: the Worker rests in a step that begins at or above it."""
    fatigue_max: float = 5.0
    work_units: int = 2
    help_work_units: int = 3
    """Progress of a worked step, alone and under HELP."""
    task_units: int = 25
    """Progress that finishes a task."""
    help_strength: float = 0.35
    """h: HELP multiplies a step's effort by 1 - h."""
    signal_strength: float = 1.0
    """s: each SIGNAL adds this to the effort the Worker expects."""
    c_help: float = 0.0
    c_signal: float = 0.0
    """Price of one action, taken from the reward."""
    ema_alpha: float = 0.1
    """a: rate at which the Worker learns how much effort a job costs."""
    rating_order: str = "update_first"
    """Whether the Worker learns from an episode before rating it (`update_first`) or after (`rate_first`)."""
    l0: float | str = CALIBRATED
    """Effort a new Worker expects: a number, or `calibrated` for the mean without the Assistant."""

    def __post_init__(self) -> None:
        for name in ("T", "work_units", "help_work_units", "task_units"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ValueError(f"{name}={value!r}: choose an integer above 0")
        for name in _FLOATS:
            object.__setattr__(self, name, _finite(name, getattr(self, name)))
        if self.l0 != CALIBRATED:
            object.__setattr__(self, "l0", _finite("l0", self.l0, f"a number or {CALIBRATED!r}"))
        self._check_ranges()

    def _check_ranges(self) -> None:
        for name in (*_SHARES, *_NONNEGATIVE):
            value, bounded = getattr(self, name), name in _SHARES
            if value < 0.0 or (bounded and value > 1.0):
                allowed = "from 0 to 1" if bounded else "of at least 0"
                raise ValueError(f"{name}={value!r}: choose a number {allowed}")
        if self.d_min > self.d_max:
            raise ValueError(f"d_min={self.d_min} is above d_max={self.d_max}; swap or change one of them")
        if not 0.0 < self.ema_alpha <= 1.0:
            raise ValueError(f"ema_alpha={self.ema_alpha}: choose a rate above 0 and at most 1")
        if self.fatigue_max <= 0.0:
            raise ValueError(f"fatigue_max={self.fatigue_max}: choose a number above 0")
        if self.rating_order not in RATING_ORDERS:
            raise ValueError(f"rating_order={self.rating_order!r}: choose one of {', '.join(RATING_ORDERS)}")
        if self.fatigue_threshold <= 0.0:
            warnings.warn(
                f"fatigue_threshold={self.fatigue_threshold}: this Worker never works", stacklevel=4
            )
        if self.fatigue_threshold >= self.fatigue_max:
            warnings.warn(
                f"fatigue_threshold={self.fatigue_threshold} is not below fatigue_max={self.fatigue_max}: "
                "this Worker never rests",
                stacklevel=4,
            )

    @property
    def effort_weight(self) -> float:
        """What one unit of felt effort takes from the rating of its own episode: 1-a, or 1 if rated first."""
        return 1.0 - self.ema_alpha if self.rating_order == "update_first" else 1.0

    @property
    def net_signal_value(self) -> float:
        """What one SIGNAL adds to the reward; may be negative."""
        return self.signal_strength - self.c_signal

    @property
    def max_tasks(self) -> int:
        """Values of `z` a tape holds: more than an episode can finish tasks."""
        return -(-self.T * max(self.work_units, self.help_work_units) // self.task_units) + 2

    def dynamics_only(self) -> "Params":
        """A copy in which everything that effort without the Assistant does not depend on has its default."""
        blank: dict[str, Any] = {name: _FIELDS[name].default for name in _NOT_DYNAMICS}
        return replace(self, **blank)

    def but(self, **changes: Any) -> "Params":
        """A copy with other values; an unknown name is a ValueError with the nearest known one."""
        _known(changes)
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Params":
        _known(values)
        return cls(**values)


_FIELDS = {field.name: field for field in fields(Params)}
_FLOATS = tuple(name for name, field in _FIELDS.items() if field.type is float)
_NOT_DYNAMICS = (
    *("c_help", "c_signal", "ema_alpha", "rating_order", "l0", "signal_strength"),
    *("help_strength", "help_work_units"),
)

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "public": {
        "fatigue_gain": 0.1,
        "fatigue_recovery": 0.1,
        "rest_decay": 0.1,
        "work_units": 5,
        "help_work_units": 6,
        "task_units": 100,
        "help_strength": 0.2,
        "l0": 0.0,
    },
}
"""`public` has the constants of the public sprint project with this idea: weak help, no rest."""


def preset(name: str = "default", **changes: Any) -> Params:
    """A named set of parameters with changes. Raises ValueError for an unknown name."""
    if name not in PRESETS:
        raise ValueError(f"preset={name!r}: choose one of {', '.join(PRESETS)}")
    _known(changes)
    return Params(**{**PRESETS[name], **changes})


def parse_setting(text: str) -> tuple[str, Any]:
    """`name=value` of a command line, with numbers as numbers. Raises ValueError without a `=`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set {text}: write name=value")
    for kind in (int, float):
        try:
            return name.strip(), kind(value)
        except ValueError:
            continue
    return name.strip(), value


def _known(values: Mapping[str, Any]) -> None:
    for name in values:
        if name not in _FIELDS:
            near = get_close_matches(name, _FIELDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(_FIELDS)}"
            raise ValueError(f"{name} is no parameter of the game; {hint}")


def _finite(name: str, value: Any, allowed: str = "a finite number") -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name}={value!r}: choose {allowed}")
    return float(value)
