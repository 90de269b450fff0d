"""The quickstart with and without shared prefixes: trained texts per second, success and leakage.

    python -m benchmarks.sharing [--seeds 0 1] [--out results/sharing] [--results DIR] [--apart]
                                 [key=value ...]

`shared` are the defaults; `trainer` computes every token of every text (`finetune.share_prefixes=false`);
`nothing` computes every prompt in the engine as well (`engine.prefix_cache=false`). Of each seed the arms run
one after the other on the first two cores, or with `--apart` at the same time, each on two cores of its own.
Rates count from the first to the last optimizer step. Finished runs are not repeated.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._figures import RESULTS, Figure, at_least, command_line, report, write_json
from benchmarks._runs import evaluations, launch, texts_per_s
from benchmarks._seeds import t_interval
from pipelinerl.observe.history import read_metrics, series
from pipelinerl.observe.intervals import known

ARMS: Mapping[str, Sequence[str]] = {
    "shared": (),
    "trainer": ("finetune.share_prefixes=false",),
    "nothing": ("finetune.share_prefixes=false", "engine.prefix_cache=false"),
}
CORES = 2
GOAL = 1.5
METRICS = ("success", "leak")


def pinned(out: Path, overrides: Sequence[str], cores: Sequence[int]) -> None:
    """One run on these cores: whoever starts a process hands on where it may run."""
    os.sched_setaffinity(0, cores)  # of this thread
    launch(out, overrides)


def row_of(run: Path) -> dict[str, Any]:
    """What one run did."""
    records = read_metrics(run, "finetune")
    ratio = series(records, "throughput/tokens_per_unique_token").y
    evaluated = evaluations(run)
    before, after = evaluated[0][1], evaluated[-1][1]
    row: dict[str, Any] = {
        "texts_per_s": texts_per_s(records),
        "tokens_per_unique_token": float(np.mean(ratio)),
    }
    for metric in METRICS:
        for when, values in (("before", before), ("after", after)):
            row[f"{metric}_{when}"] = float(known(values[metric]).mean())
    return row


def differences(rows: Sequence[Mapping[str, Any]], metric: str) -> list[Figure]:
    """Of the last models of two arms, with a 95 % t interval over seeds; all are asked the same chains."""
    after = {(row["arm"], row["seed"]): row[f"{metric}_after"] for row in rows}
    seeds = [row["seed"] for row in rows if row["arm"] == "shared"]
    mean, half = t_interval([after["shared", seed] - after["nothing", seed] for seed in seeds])
    name = f"{metric} after, shared - nothing"
    ends = {"": mean} if half is None else {"": mean, ", lower end": mean - half, ", upper end": mean + half}
    return [Figure(f"{name}{end}", value, "") for end, value in ends.items()]


def main() -> int:
    options = command_line(__doc__)
    cores = sorted(os.sched_getaffinity(0))
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        places = {arm: options.out / f"{arm}_{seed}" for arm in ARMS}
        with ThreadPoolExecutor(len(ARMS) if options.apart else 1) as pool:
            started = [
                pool.submit(
                    pinned,
                    places[arm],
                    [*ARMS[arm], f"seed={seed}", *options.overrides],
                    cores[CORES * number :][:CORES] if options.apart else cores[:CORES],
                )
                for number, arm in enumerate(ARMS)
            ]
            for run in started:
                run.result()
        rows += [{"seed": seed, "arm": arm} | row_of(run) for arm, run in places.items()]
        write_json((options.results or RESULTS) / "sharing_rows.json", {"rows": rows})
    rates = {arm: np.array([row["texts_per_s"] for row in rows if row["arm"] == arm]) for arm in ARMS}
    figures = [Figure(f"{arm}: trained texts", float(rate.mean()), "1/s") for arm, rate in rates.items()]
    figures.append(
        at_least("shared / nothing", float((rates["shared"] / rates["nothing"]).mean()), "x", GOAL)
    )
    figures.append(Figure("shared / trainer", float((rates["shared"] / rates["trainer"]).mean()), "x"))
    for metric in METRICS:
        figures += differences(rows, metric)
    settings = {"domain": "privacy_hopqa", "seeds": options.seeds, "apart": options.apart}
    return report("sharing", figures, settings, options.results and options.results / "sharing.json")


if __name__ == "__main__":
    sys.exit(main())
