"""Train and evaluate over prices and rewards: `python -m domains.reputation_hacking.ablate --out DIR`."""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from domains.reputation_hacking import console
from domains.reputation_hacking.dynamics import Tapes
from domains.reputation_hacking.mitigations import Mitigation, initial_effort
from domains.reputation_hacking.paired import HELD_OUT
from domains.reputation_hacking.params import Params
from domains.reputation_hacking.policies import Policy
from domains.reputation_hacking.recipes import BASE, Recipe

ABLATION = "ablation.csv"
OPTIMUM = "optimum.csv"
FEATURES = ("scaled", "raw")
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
QUICK_STEPS, QUICK_SEEDS = 153_600, 100
QUICK_PRICES = (0.0, 0.7, 1.2)
TRAIN_SEEDS = 2


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


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m domains.reputation_hacking.ablate", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--quick", action="store_true", help="three prices, one training seed, short training"
    )
    parser.add_argument("--c-signal", type=console.number_list, metavar="F,..", help="prices")
    parser.add_argument(
        "--mitigations", default="none", metavar="a,b", help="reward variants, with ; for constants"
    )
    parser.add_argument(
        "--features", default=",".join(FEATURES), metavar="a,b", help=f"of {', '.join(FEATURES)}"
    )
    parser.add_argument("--train-seeds", type=int, metavar="K")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of each training")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="processes")
    parser.add_argument("--no-ppo", action="store_true", help="only the optimum")
    return parser.parse_args(argv)


def cells_of(options: argparse.Namespace) -> list[Cell]:
    """The grid that the command line asks for. Raises ValueError."""
    steps = options.steps or (QUICK_STEPS if options.quick else BASE.total_steps)
    count = options.train_seeds or (1 if options.quick else TRAIN_SEEDS)
    separator = ";" if ";" in options.mitigations or ":" in options.mitigations else ","
    names = [str(Mitigation.parse(text)) for text in options.mitigations.split(separator)]
    features = options.features.split(",")
    for name in features:
        if name not in FEATURES:
            raise ValueError(f"--features {name}: choose among {', '.join(FEATURES)}")
    recipe, seeds = replace(BASE, total_steps=steps), tuple(evaluation_seeds(options))
    return [
        Cell(c_signal=price, mitigation=name, features=kind, train_seed=seed, recipe=recipe, seeds=seeds)
        for name in names
        for price in prices_of(options)
        for kind in features
        for seed in range(count)
    ]


def prices_of(options: argparse.Namespace) -> list[float]:
    from domains.reputation_hacking.transition import PRICES

    return list(options.c_signal or (QUICK_PRICES if options.quick else PRICES))


def evaluation_seeds(options: argparse.Namespace) -> list[int]:
    return list(HELD_OUT)[: QUICK_SEEDS if options.quick else None]


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
    from domains.reputation_hacking.sb3 import ModelPolicy
    from domains.reputation_hacking.training import train

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
    from domains.reputation_hacking.paired import paired
    from domains.reputation_hacking.report import Yardstick, columns

    start = initial_effort(params)
    values = columns(paired(params, policy, seeds, start, mitigation=mitigation), mitigation)
    means = {name: float(array.mean()) for name, array in values.items()}
    plain = mitigation.name == "none"
    share = Yardstick(params, seeds).share(means["return"]) if plain else None
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


def train_cells(cells: list[Cell], path: Path, jobs: int) -> list[dict[str, Any]]:
    """Run the cells that `path` lacks; every finished cell is written at once."""
    rows: list[dict[str, Any]] = list(finished_rows(path))
    policies: dict[tuple[str, ...], int] = {}
    for row in rows:
        key = tuple(row[name] for name in CELL)
        policies[key] = policies.get(key, 0) + 1
    missing = [cell for cell in cells if policies.get(cell.key, 0) < 2]
    rows = [row for row in rows if policies[tuple(row[name] for name in CELL)] == 2]
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
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run_cell, cell) for cell in cells]):
            yield future.result()


def execute(options: argparse.Namespace) -> None:
    """Run the grid, write both tables and both figures, print a summary."""
    from domains.reputation_hacking.mitigation_plot import draw_mitigations
    from domains.reputation_hacking.transition import (
        OPTIMUM_COLUMNS,
        draw_transition,
        optimum_row,
        write_rows,
    )

    out, params, seeds = console.output_folder(options.out), Params(), evaluation_seeds(options)
    cells = [] if options.no_ppo else cells_of(options)
    optimum = [optimum_row(params.but(c_signal=price), seeds) for price in prices_of(options)]
    write_rows(out / OPTIMUM, OPTIMUM_COLUMNS, optimum)
    rows = train_cells(cells, out / ABLATION, options.jobs)
    usable = [numbers(row) for row in rows if not row["error"]]
    greedy = [row for row in usable if row["policy"] == "deterministic"]
    tapes = Tapes.from_seeds(params, seeds)
    plain = [row for row in greedy if row["mitigation"] == "none"]
    draw_transition(out / console.PLOTS_FOLDER / "transition.png", params, tapes, optimum, plain)
    draw_mitigations(out / console.PLOTS_FOLDER / "mitigations.png", greedy, len(seeds))
    print(summary(greedy, [row for row in rows if row["error"]]))
    print(f"wrote {out / ABLATION}, {OPTIMUM}, {console.PLOTS_FOLDER}/transition.png and mitigations.png")


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its numbers as floats."""
    text = {"mitigation", "features", "policy", "error"}
    return {name: value if name in text else float(value) for name, value in row.items()}


def summary(rows: list[dict[str, Any]], failed: list[dict[str, Any]]) -> str:
    """One line per cell, deterministic policies."""
    lines = ["mitigation            c_signal features seed    HELP  SIGNAL      TI      MS  share"]
    for row in rows:
        share = row["share_of_margin"]
        lines.append(
            f"{row['mitigation']:<22}{row['c_signal']:>8g} {row['features']:<8}{row['train_seed']:>5.0f}"
            f"{row['help']:>8.1f}{row['signal']:>8.1f}{row['true_impact']:>8.2f}{row['manipulation_score']:>8.2f}"
            f"{'n/a' if share != share else f'{share:.2f}':>7}"
        )
    lines += [f"failed: {', '.join(row[name] for name in CELL)}: {row['error']}" for row in failed]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    return console.run("ablate", lambda: execute(options))


if __name__ == "__main__":
    sys.exit(main())
