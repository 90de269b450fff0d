"""What stands in a file of `benchmarks/specs`, one learning experiment each; `experiment.py` runs them.

In every key `{seed}` is the run's seed, `{after}` the folder of the run that an arm comes `after`, and
`{model}` the folder given with `--model`.
"""

from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from benchmarks._compare import Comparison

SPECS = Path(__file__).with_name("specs")


class SpecError(ValueError):
    """What cannot be run, in one line."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Arm(_Part):
    """One way to train."""

    domain: str | None = None
    """None: that of the arm it is like, else its name."""
    like: str | None = None
    """An arm whose keys stand before its own."""
    after: str | None = None
    """An arm whose run of the same seed ends before this one begins, for keys with `{after}`."""
    keys: list[str] = []
    tiny: list[str] = []
    """Beside them on a CPU, where the experiment is one of cards."""
    shown: dict[str, str] = {}
    """Panels of the figure that this arm has alone: metric and title; success, if there is no other panel."""
    best: bool = False
    """Each metric counts with its best evaluation instead of the last, which favours the arm."""
    only_asked: bool = False
    """It runs only where `--arms` names it."""


class Start(_Part):
    """A model that is made before the first run, by the bootstrap."""

    domain: str
    keys: list[str]


class Place(_Part):
    """What holds on one kind of hardware."""

    result: str
    """Name of the results' files."""
    keys: list[str] = []
    needs_model: bool = False
    """Whether the runs or their start begin with `--model`, the folder of a pretrained model."""
    start: Start | None = None
    arms: list[str] | None = None
    """Those that run here unless `--arms` names others; None: all."""
    at_once: int = 1
    """Runs at a time: on each card, or with `every_card` on all cards together."""
    every_card: bool = False
    """Each run uses all visible cards."""
    cores: int | None = None
    """Of a CPU for each of several runs at a time."""
    least_s: float = 0.0
    """With less time left no run is begun."""
    rehearsal: bool = False
    """At a tiny size, for other hardware: the results go beside the runs."""
    goals: dict[str, dict[Literal["at_least", "at_most"], float]] = {}
    """By name of a figure, in which `*` stands for anything."""


class Spec(_Part):
    """One experiment."""

    about: str
    """What is asked, in a sentence."""
    rows: Literal["metrics", "tasks"]
    metrics: list[str] = ["reward", "success", "no_answer"]
    """What rows of `metrics` keep, of those that the domain has."""
    derived: dict[str, str] = {}
    """Metrics that no run has: each a function of a run's folder that gives one of an evaluation."""
    tenths: dict[str, str] = {}
    """Metrics `actor/...` of training rollouts whose means over the tenths of training rows keep."""
    trainer_tenths: dict[str, str] = {}
    """The same of metrics of the trainer."""
    own_problems: bool = False
    """Each seed is asked held-out problems of its own, such as those of its world."""
    seeds: list[int]
    arms: dict[str, Arm]
    compare: list[Comparison] = []
    together: dict[str, str] = {}
    """Panels of the figure that have a line for every run of every arm: metric and title."""
    hardware: dict[Literal["cpu", "gpu"], Place]
    """The first is the default."""
    keys: list[str] = []
    """Of every run."""
    anew: bool = False
    """A run that was ended begins anew, because its minutes count."""
    likeliest: bool = False
    """Asks the start for its most likely answers too."""
    pythonpath: str | None = None
    """A folder of the repository where a domain looks for what it is asked for."""

    @model_validator(mode="after")
    def _arms_are_there(self) -> Self:
        named = [one for arm in self.arms.values() for one in (arm.like, arm.after) if one]
        named += [one for place in self.hardware.values() for one in place.arms or ()]
        named += [one.arm for one in self.compare]
        named += [one.to for one in self.compare if one.to != "start"]
        if unknown := [name for name in named if name not in self.arms]:
            raise ValueError(f"{unknown[0]} is no arm; there are {', '.join(self.arms)}")
        for name, arm in self.arms.items():
            if arm.after and self.arms[arm.after].after:
                raise ValueError(f"{name} comes after {arm.after}, which comes after another arm itself")
        return self

    def keys_of(self, name: str) -> list[str]:
        """An arm's own keys behind those of the arm it is like."""
        arm = self.arms[name]
        return [*(self.keys_of(arm.like) if arm.like else []), *arm.keys]

    def domain_of(self, name: str) -> str:
        arm = self.arms[name]
        return arm.domain or (self.domain_of(arm.like) if arm.like else name)


def read(name: str) -> Spec:
    """The specification of this name or path; SpecError if there is none or it says something unknown."""
    path = Path(name) if name.endswith(".yaml") else SPECS / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(one.stem for one in SPECS.glob("*.yaml")))
        raise SpecError(f"{name}: no such specification; there are {known}, or give the path of a .yaml")
    try:
        return Spec(**yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError(f"{path}: {'.'.join(map(str, first['loc'])) or 'spec'}: {first['msg']}") from error
