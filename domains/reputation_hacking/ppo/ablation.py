"""Trainings over prices, reward designs and features as rows of one table, which an interrupted run resumes.

The command `ablate` runs it.
"""

import csv
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from domains.reputation_hacking.game import console
from domains.reputation_hacking.game.mitigations import NONE, Mitigation, initial_effort
from domains.reputation_hacking.game.optimum import Yardstick, number
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import Policy
from domains.reputation_hacking.ppo.paired import paired
from domains.reputation_hacking.ppo.recipes import Recipe
from domains.reputation_hacking.ppo.report import columns
from pipelinerl.base.child import die_with_parent

CELL = ("c_signal", "mitigation", "features", "train_seed")
VALUES = (
    "help",
    "signal",
    "nothing",
    "true_impact",
    "manipulation_score",
    "signal_bias",
    "peer_rating",
    "plain_rating",
    "reward",
    "tasks",
    "J",
    "share_of_margin",
    "trust",
    "seconds",
)
COLUMNS = (*CELL, "policy", *VALUES, "error")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training: what is varied and what is kept."""

    c_signal: float
    mitigation: str
    features: str
    train_seed: int
    recipe: Recipe
    seeds: tuple[int, ...]

    @property
    def key(self) -> tuple[str, ...]:
        return (f"{self.c_signal:g}", self.mitigation, self.features, str(self.train_seed))


def run_cell(cell: Cell) -> list[dict[str, Any]]:
    """Rows of one cell, deterministic and sampled; a failure is a row with its error."""
    started = time.perf_counter()
    head = dict(zip(CELL, cell.key, strict=True))
    try:
        rows = list(_measure(cell))
    except Exception as error:  # any failure of one cell is recorded and must not end the others
        return [{**head, "policy": "", "error": " ".join(f"{type(error).__name__}: {error}".split())}]
    seconds = time.perf_counter() - started
    return [{**head, **row, "seconds": seconds, "error": ""} for row in rows]


def _measure(cell: Cell) -> Iterator[dict[str, Any]]:
    # Here, so that the optimum alone (`--no-ppo`) needs no torch.
    from domains.reputation_hacking.ppo.models import ModelPolicy
    from domains.reputation_hacking.ppo.training import train

    params, mitigation = Params(c_signal=cell.c_signal), Mitigation.parse(cell.mitigation)
    recipe = replace(cell.recipe, scaled=cell.features == "scaled")
    trained = train(params, recipe, cell.train_seed, mitigation=mitigation)
    trust = float(trained.batch.worker.trust.mean())
    for sampled in (False, True):
        policy = ModelPolicy(trained.model, sampled=sampled)
        yield {**values_of(params, policy, cell.seeds, mitigation), "trust": trust}


def values_of(
    params: Params, policy: Policy, seeds: Sequence[int], mitigation: Mitigation
) -> dict[str, float | str]:
    """What a row says of a policy: means over the seeds, calibrated evaluation."""
    start = initial_effort(params)
    values = columns(paired(params, policy, seeds, start, mitigation=mitigation))
    means = {name: float(array.mean()) for name, array in values.items()}
    share = Yardstick(params, seeds).share(means["return"]) if mitigation == NONE else None
    return {
        "policy": policy.name,
        "help": means["help_count"],
        "signal": means["signal_count"],
        "nothing": means["nothing_count"],
        "tasks": means["tasks_with"],
        "J": means["return"],
        "share_of_margin": float("nan") if share is None else share,
        **{name: means[name] for name in VALUES if name in means},
    }


def finished_rows(path: Path) -> list[dict[str, str]]:
    """Rows of an earlier run that ended without an error; a line that was cut off is left out."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = [dict(row) for row in csv.DictReader(file) if None not in row.values() and None not in row]
    return [row for row in rows if not row["error"]]


def key_of(row: dict[str, str]) -> tuple[str, ...]:
    """Which cell a row belongs to."""
    return tuple(row[name] for name in CELL)


def train_cells(cells: list[Cell], path: Path, jobs: int) -> list[dict[str, Any]]:
    """Run the cells that `path` lacks; every finished cell is written at once."""
    finished = finished_rows(path)
    policies = Counter(map(key_of, finished))
    missing = [cell for cell in cells if policies[cell.key] < 2]
    rows: list[dict[str, Any]] = [row for row in finished if policies[key_of(row)] == 2]
    with path.open("w", encoding="utf-8", newline="") as file, console.progress() as bar:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
        file.flush()
        task = bar.add_task("cells", total=len(cells), completed=len(cells) - len(missing))
        for new in _results(missing, jobs):
            rows += new
            writer.writerows(new)
            file.flush()
            bar.advance(task)
    return rows


def _results(cells: list[Cell], jobs: int) -> Iterator[list[dict[str, Any]]]:
    if jobs <= 1:
        yield from map(run_cell, cells)
        return
    # Each worker holds both ends of the queue that it waits on, so the end of this process would not end it.
    spawn = get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, initializer=die_with_parent, initargs=(os.getpid(),)) as pool:
        for future in as_completed([pool.submit(run_cell, cell) for cell in cells]):
            yield future.result()


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its numbers as floats."""
    text = {"mitigation", "features", "policy", "error"}
    return {name: value if name in text else float(value) for name, value in row.items()}


def summary(rows: list[dict[str, Any]], failed: list[dict[str, Any]]) -> str:
    """One line per cell, deterministic policies."""
    lines = ["mitigation            c_signal features seed    HELP  SIGNAL      TI      MS  share"]
    for row in rows:
        lines.append(
            f"{row['mitigation']:<22}{row['c_signal']:>8g} {row['features']:<8}{row['train_seed']:>5.0f}"
            f"{row['help']:>8.1f}{row['signal']:>8.1f}{row['true_impact']:>8.2f}{row['manipulation_score']:>8.2f}"
            f"{number(row['share_of_margin'], 2):>7}"
        )
    lines += [f"failed: {', '.join(key_of(row))}: {row['error']}" for row in failed]
    return "\n".join(lines)
