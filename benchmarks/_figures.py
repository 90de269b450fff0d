"""What every benchmark does: command line, times, figures printed beside their goals and kept as JSON."""

import argparse
import json
import os
import platform
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelinerl.base.errors import CommandParser
from pipelinerl.config.detect import nvidia_smi

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """One measured number. `goal` None: it stands beside the others, for comparison."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    at_least: bool = True

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
        if self.goal is None:
            return None
        return bool(self.value >= self.goal if self.at_least else self.value <= self.goal)

    def line(self) -> str:
        wanted = ""
        if self.goal is not None:
            sign = ">=" if self.at_least else "<="
            wanted = f"   goal {sign} {self.goal:g} {self.unit}: {'met' if self.met else 'MISSED'}"
        number = f"{self.value:,.0f}" if abs(self.value) >= 1000 else f"{self.value:.4g}"
        return f"  {self.name:<44} {number:>12} {self.unit:<10}{wanted}"


def at_least(name: str, value: float, unit: str, goal: float | None) -> Figure:
    return Figure(name, value, unit, goal)


def at_most(name: str, value: float, unit: str, goal: float | None) -> Figure:
    return Figure(name, value, unit, goal, at_least=goal is None)


def command_line(
    doc: str | None, argv: Sequence[str] | None = None, **choices: Collection[str]
) -> argparse.Namespace:
    """What a script was called with. Its options are those of the usage in its docstring, which is the help.

    `[--texts 1024]` has a default and its type: int, float, a path if it has a slash, otherwise text. Several
    words are a list, and so is one before `...`. Words in capitals stand for a value without a default: a
    path for FILE, DIR and PYTHON, otherwise text. `[--cpu]` is a switch, `[--hardware cpu|gpu]` a choice;
    `choices` has those of other options. `[key=value ...]` are `overrides`, `[NUMBER ...]` are `words`.
    """
    parser = CommandParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, words in re.findall(r"\[--([a-z-]+)([^]]*)\]", doc or ""):
        allowed = choices.get(name.replace("-", "_"))
        values = words.replace("...", "").split()
        if not values:
            parser.add_argument(f"--{name}", action="store_true")
            continue
        if "|" in words:
            values, allowed = values[0].split("|")[:1], values[0].split("|")
        read, default = _values(values)
        if "..." in words or len(values) > 1:
            parser.add_argument(f"--{name}", type=read, nargs="+", default=default, choices=allowed)
        else:
            one = default[0] if default else None
            parser.add_argument(f"--{name}", type=read, default=one, choices=allowed)
    if rest := re.search(r"\[(key=value|[A-Z]+) \.\.\.\]", doc or ""):
        parser.add_argument("overrides" if "=" in rest[1] else "words", nargs="*")
    return parser.parse_intermixed_args(argv)


def _values(words: Sequence[str]) -> tuple[Callable[[str], Any], list[Any]]:
    """The type of an option, and its default values; none for words in capitals."""
    if words[0].isupper() and words[0].isalpha():  # `1.7B` is upper case for Python
        return Path if words[0] in ("FILE", "DIR", "PYTHON") else str, []
    readers: list[Callable[[str], Any]] = [int, float, Path if "/" in words[0] else str]
    for read in readers:
        with suppress(ValueError):
            return read, [read(word) for word in words]
    raise AssertionError("any word is text")


def report(
    script: str, figures: Iterable[Figure], settings: Mapping[str, Any], out: Path | None = None
) -> int:
    """Print figures, write them to `results/<script>.json` (or `out`); returns how many goals are missed."""
    print(f"{script}: {', '.join(f'{name} {value}' for name, value in settings.items())}")
    rows, missed = {}, 0
    for one in figures:
        print(one.line())
        row = {"value": float(f"{one.value:.6g}"), "unit": one.unit, "goal": one.goal}
        rows[one.name] = row | {"at_least": one.at_least, "met": one.met}
        missed += one.met is False
    record = {"settings": dict(settings), "figures": rows, "machine": machine()}
    write_json(out or RESULTS / f"{script}.json", record)
    return missed


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    found = {
        "cpu": models[0] if models else "unknown",
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }
    cards = (nvidia_smi("--query-gpu=name", "--format=csv,noheader") or "").splitlines()
    return found | ({"cards": cards} if cards else {})


def seconds_of(
    work: Callable[[], Any], runs: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Seconds of each of `runs` calls after one to warm up."""
    work()
    times = []
    for _ in range(runs):
        start = clock()
        work()
        times.append(clock() - start)
    return times


def best_us(work: Callable[[], Any], calls: int, rounds: int = 25) -> float:
    """Microseconds per call in the best of several rounds; other processes only ever make it slower."""

    def several() -> None:
        for _ in range(calls):
            work()

    return 1e6 * min(seconds_of(several, rounds)) / calls
