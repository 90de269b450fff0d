"""The steps of plan.yaml: their limits, their place, and how they are rehearsed. No side effects."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

SLOWER = 3.0
"""Limits of a rehearsal, on a machine that does other things too."""
SOFT_S = 40.0
"""Before a step's limit: what was begun then should still end."""
EVERY_CORE = (0.0, 1.0)
NEEDS_VLLM = ("benchmarks.gpu.engine", "benchmarks.gpu.several")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command with its limit; plan.yaml says what its fields are."""

    name: str
    module: str
    arguments: Sequence[str] = ()
    limit_s: float
    least_s: float = 30.0
    tiny: Sequence[str] | None = None
    tiny_with_vllm: Sequence[str] = ()
    launcher: Sequence[str] = ()
    """Words between the interpreter and the module, such as a launcher of several ranks."""


@dataclass(frozen=True)
class Lane:
    """Steps one after the other on cards (as CUDA_VISIBLE_DEVICES names them) and a share of the cores."""

    steps: Sequence[Step]
    cards: str = ""
    cores: tuple[float, float] = EVERY_CORE
    """From and to, as shares of the cores there are."""
    untimed: bool = False
    """Nothing in it is timed and it takes little memory: its cards may be those of another lane too."""

    def core_range(self, cores: int) -> tuple[int, int]:
        """The first and the last core, at least one."""
        first = min(cores - 1, round(self.cores[0] * cores))
        return first, max(first, round(self.cores[1] * cores) - 1)


Stage = Sequence[Sequence[Lane]]
"""Lanes beside each other, by phase."""
_LOADED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def step(name: str, limit_s: float, more: str = "") -> Step:
    """A step of plan.yaml with this limit and further arguments."""
    fields: dict[str, Any] = dict(_LOADED["steps"][name])
    for words in {"arguments", "tiny", "tiny_with_vllm", "launcher"} & fields.keys():
        fields[words] = shlex.split(fields[words])
    arguments = [*fields.pop("arguments"), *more.split()]
    return Step(name=name, limit_s=limit_s, arguments=arguments, **fields)


def _lane(steps: Sequence[Mapping[str, Any]], cores: Sequence[float] = EVERY_CORE, **fields: Any) -> Lane:
    made = [step(one["step"], one["limit_s"], one.get("more", "")) for one in steps]
    return Lane(made, cores=(cores[0], cores[1]), **fields)


PLANS: dict[str, Sequence[Stage]] = {
    name: [[[_lane(**lane) for lane in phase] for phase in stage] for stage in stages]
    for name, stages in _LOADED["plans"].items()
}


def seconds_of(stage: Stage) -> float:
    """The longest that a stage can take: phases after each other, lanes beside each other."""
    return sum(max(sum(step.limit_s for step in lane.steps) for lane in phase) for phase in stage)


def limit_of(step: Step, left_s: float) -> float | None:
    """Seconds that a step gets when so many are left; None if it should not be started."""
    return None if left_s < step.least_s else min(step.limit_s, left_s)


def rehearsal(step: Step, vllm: str | None) -> Step | None:
    """The step on a machine without a card; `vllm` is the interpreter of a CPU build. None: cannot be."""
    if step.tiny is None or (step.module in NEEDS_VLLM and not vllm):
        return None
    arguments = (*step.tiny, *(filled(step.tiny_with_vllm, {"vllm": vllm}) if vllm else ()))
    return replace(step, arguments=arguments, limit_s=step.limit_s * SLOWER)


def filled(arguments: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Arguments with `{name}` replaced; other braces, of configuration values, stay as they are."""
    done = []
    for argument in arguments:
        for name, value in values.items():
            argument = argument.replace(f"{{{name}}}", value)
        done.append(argument)
    return done
