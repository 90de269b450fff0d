"""What every figure's script does at its end: print value, goal and verdict, and keep them as JSON."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def at_least(name: str, value: float, unit: str, goal: float) -> Figure:
    return Figure(name, value, unit, goal, True)


def at_most(name: str, value: float, unit: str, goal: float) -> Figure:
    return Figure(name, value, unit, goal, False)


def report(
    script: str, figures: Sequence[Figure], settings: Mapping[str, Any], out: Path | None = None
) -> int:
    """Print figures, write them to `results/<script>.json` (or `out`); returns how many goals are missed."""
    print(f"{script}: {', '.join(f'{name} {value}' for name, value in settings.items())}")
    for figure in figures:
        print(figure.line())
    rows = {
        figure.name: {
            "value": float(f"{figure.value:.6g}"),
            "unit": figure.unit,
            "goal": figure.goal,
            "at_least": figure.at_least,
            "met": figure.met,
        }
        for figure in figures
    }
    path = out or RESULTS / f"{script}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"settings": dict(settings), "figures": rows, "machine": machine()}
    path.write_text(json.dumps(record, indent=1) + "\n")
    return sum(figure.met is False for figure in figures)


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "unknown")


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
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            work()
        times.append((time.perf_counter() - start) / calls)
    return min(times) * 1e6
