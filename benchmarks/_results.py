"""Results as templates read them, for `benchmarks.documents` and for the reasons in `benchmarks.goals`.

A template is a Python format string over the results: `{arms[table][start][success]:.3f}` reads arms.json.
What a path leads to says how it is shown:

- a number, by Python's format, behind `x100 ` multiplied by 100; `2s` shows at least two significant digits;
- an interval (mean or value with low and high, or with half_width) as `0.45 [0.40, 0.50]` or `19.7 ± 0.7`;
- a list, item by item, with commas between.

`[name]` is a key of an object, a position in a list, or that key of each item of a list. `[arm=raro,seed=0]`
is the only item of a list with these values, `[all arm=raro]` a list of such. `.f[NAME]` is the value of the
figure NAME; `.list` are the values of an object, `.mean`, `.median`, `.min` and `.max` those of a list.
`.interval` takes mean, lower and upper end from a list, `.ends` from a mean with half a width, `.ratio` from
a ratio.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import derived


@dataclass(frozen=True)
class Found:
    """A place in a result, as format strings walk through it."""

    value: Any

    def __getitem__(self, key: str | int) -> "Found":
        name = str(key)
        if isinstance(self.value, Mapping):
            return Found(self.value[name])
        if "=" in name:
            return Found(_selected(self.value, name))
        if re.fullmatch(r"-?\d+", name):
            return Found(self.value[int(name)])
        return Found([Found(item)[name].value for item in self.value])

    @property
    def f(self) -> "Found":
        return Found({name: figure["value"] for name, figure in self.value["figures"].items()})

    @property
    def list(self) -> "Found":
        if isinstance(self.value, Mapping):
            return Found(list(self.value.values()))
        return Found([list(item.values()) for item in self.value])

    @property
    def mean(self) -> "Found":
        """Over the first axis."""
        return Found(np.mean(self.value, axis=0).tolist())

    @property
    def median(self) -> "Found":
        return Found(float(np.median(self.value)))

    @property
    def interval(self) -> "Found":
        """Of a list of mean, lower and upper end."""
        return Found(dict(zip(("mean", "low", "high"), self.value, strict=True)))

    @property
    def ratio(self) -> "Found":
        """Of a ratio with its lower and upper end."""
        return Found({"mean": self.value["ratio"], "low": self.value["low"], "high": self.value["high"]})

    @property
    def ends(self) -> "Found":
        """Mean, lower and upper end of a mean with half a width."""
        middle, half = self.value["mean"], self.value["half"]
        return Found({"mean": middle, "low": middle - half, "high": middle + half})

    @property
    def min(self) -> "Found":
        return Found(min(self.value))

    @property
    def max(self) -> "Found":
        return Found(max(self.value))

    def __format__(self, spec: str) -> str:
        return shown(self.value, spec)


def _selected(items: list[Any], condition: str) -> Any:
    """The only item that meets `a=1,b=2`, or all of them behind `all `."""
    every, wanted = condition.startswith("all "), condition.removeprefix("all ")
    pairs = [pair.split("=", 1) for pair in re.split(r",(?=\w+=)", wanted)]
    met = [item for item in items if all(str(item[key]) == value for key, value in pairs)]
    if every:
        return met
    if len(met) != 1:
        raise KeyError(f"{len(met)} items have {wanted}, one is needed")
    return met[0]


def shown(value: Any, spec: str) -> str:
    """A number, an interval, a list or a word as a page has it."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(shown(item, spec) for item in value)
    if isinstance(value, Mapping):
        middle = shown(value["mean"] if "mean" in value else value["value"], spec)
        if "half_width" in value:
            return f"{middle} ± {shown(value['half_width'], spec)}"
        middle += value.get("unit", "")
        return f"{middle} [{shown(value['low'], spec)}, {shown(value['high'], spec)}]"
    factor, _, digits = spec.rpartition(" ")
    number = value * float(factor.removeprefix("x")) if factor else value
    if significant := re.fullmatch(r"(\d)s", digits):
        size = math.floor(math.log10(abs(number))) if number else 0
        digits = f",.{max(0, int(significant[1]) - 1 - size)}f"
    text = format(number, digits)
    return text.lstrip("-") if text.startswith("-") and not re.search(r"[1-9]", text) else text


class Results(Mapping[str, Found]):
    """The files of a folder by name, then the derived values of `derived.py`; `t` is a table's own file."""

    def __init__(self, folder: Path, own: str | None = None) -> None:
        self.folder, self.own = folder, own

    def __getitem__(self, name: str) -> Found:
        name = (self.own or name) if name == "t" else name
        if name in derived.VALUES:
            return Found(_derived(derived.VALUES[name], self.folder))
        return Found(_read(self.folder, name))

    def __iter__(self) -> Any:
        return iter([])

    def __len__(self) -> int:
        return 0


@cache
def _read(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


@cache
def _derived(function: Callable[..., Any], folder: Path) -> Any:
    return function(lambda name: _read(folder, name))
