"""Runs as child processes, their evaluations, and paired intervals over seeds."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._processes import launcher
from pipelinerl.observe.history import read_evaluations
from pipelinerl.observe.intervals import Interval, bootstrap

DEADLINE_S = 3600

Column = Sequence[float | None]
"""A metric's value of each held-out problem; None where it does not apply."""
Paired = tuple[Interval, Interval, Interval]
"""Before, after, difference."""
Values = dict[str, list[float | None]]
"""Of one evaluation: a value per held-out chain for each metric; None where the metric does not apply."""


def launch(out: Path, overrides: Sequence[str], domain: str = "privacy_hopqa") -> None:
    """One run to its end; a finished one is left alone.

    Raises RuntimeError with the launcher's last line, or when a finished run was asked for with others.
    """
    asked = out / "launcher" / "asked.json"
    if (out / "launcher" / "completed.json").is_file():
        before = json.loads(asked.read_text()) if asked.is_file() else list(overrides)
        if before != list(overrides):
            changed = ", ".join(sorted(set(before) ^ set(overrides)))
            raise RuntimeError(f"{out}: finished with other settings ({changed}); use another --out")
        return
    run_to_end(launcher(out, [f"+domain={domain}", "hardware=cpu", *overrides]))
    asked.write_text(json.dumps(list(overrides)))


def run_to_end(
    command: Sequence[str], deadline_s: float = DEADLINE_S, env: Mapping[str, str] | None = None
) -> None:
    """Raises RuntimeError with its last line if it fails, subprocess.TimeoutExpired at the deadline."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False, env=env)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}: {said[-1]}")


def evaluations(out: Path) -> list[tuple[int, Values]]:
    """(weight version, values per held-out chain) of each evaluation of all starts of a run, in order."""
    return [(one.version, dict(one.values)) for one in read_evaluations(out)]


def texts_per_s(records: Sequence[Mapping[str, Any]]) -> float:
    """Between the ends of the first and the last optimizer step."""
    steps = [(record["stats/samples"], record["time"]) for record in records if "stats/samples" in record]
    (first, began), (last, ended) = steps[0], steps[-1]
    return float((last - first) / (ended - began))


def paired(pairs: Sequence[tuple[Values, Values]], metric: str) -> Paired:
    """Before, after and difference over the chains of all seeds that have both values.

    For seeds with held-out problems of their own, such as worlds; otherwise `paired_by_problem`.
    """
    columns = [
        (b, a)
        for before, after in pairs
        for b, a in zip(before.get(metric, []), after.get(metric, []), strict=True)
        if b is not None and a is not None
    ]
    return _intervals(np.array(columns, np.float64).reshape(-1, 2))


def paired_by_problem(before: Sequence[Column], after: Sequence[Column]) -> Paired:
    """Before, after and difference of seeds that were asked the same problems, in the same order.

    A problem counts once, with its mean over the seeds: what one seed's model solves, another's often does,
    so their answers to it are no independent draws. Problems without a value in some seed take the others'.
    """
    table = np.array([before, after], np.float64)  # None becomes NaN; [2, seeds, problems]
    table[:, np.isnan(table).any(axis=0)] = np.nan
    return _intervals(np.stack([mean_by_problem(end) for end in table], axis=1))


def mean_by_problem(columns: Sequence[Column] | np.ndarray) -> np.ndarray:
    """Means over runs, float64 [problems]; problems of which none has a value are left out."""
    table = np.array(columns, np.float64)
    return np.nanmean(table[:, ~np.isnan(table).all(axis=0)], axis=0)


def _intervals(table: np.ndarray) -> Paired:
    """Of float64 [problems, 2]."""
    return bootstrap(table[:, 0]), bootstrap(table[:, 1]), bootstrap(table[:, 1] - table[:, 0])
