"""Rows of runs by metric: values of each held-out problem before and after, and means on the way.

One kind of rows of `benchmarks.experiment`; rows are kept in the results as they are.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _runs
from benchmarks._figures import Figure
from benchmarks._learning_figure import Panel
from pipelinerl.observe.history import Evaluation, read_evaluations, read_metrics
from pipelinerl.observe.intervals import known

Row = dict[str, Any]
METRICS = ("reward", "success", "no_answer", "reward_halves", "metric_inside")
"""Of those that a domain has, what a row keeps."""


def ended(out: Path) -> list[Evaluation]:
    """Evaluations of a run; ValueError if it was ended before its second one."""
    found = read_evaluations(out)
    if len(found) < 2:
        raise ValueError(f"{out.name}: {len(found)} evaluations; two are needed, before and after training")
    return found


def row_of(seed: int, out: Path) -> Row:
    """What a run reached: values of each problem before and after, means on the way, and its time.

    ValueError if it was ended before its second evaluation.
    """
    found = ended(out)
    names = [name for name in METRICS if all(len(known(one.values.get(name, []))) for one in found)]
    steps = [one for one in read_metrics(out, "finetune") if "stats/samples" in one]
    return {
        "seed": seed,
        "texts": found[-1].version,
        "steps": steps[-1]["stats/completed_steps"],
        "training_min": (steps[-1]["time"] - steps[0]["time"]) / 60,
        "texts_per_s": _runs.texts_per_s(steps),
        "values": {name: [found[0].values[name], found[-1].values[name]] for name in names},
        "curve": {
            name: [[one.version, float(known(one.values[name]).mean())] for one in found] for name in names
        },
    }


def table_of(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Before, after and paired difference of each metric; intervals over problems, which all seeds share."""
    table = {}
    for name in rows[0]["values"]:
        ends = ([row["values"][name][end] for row in rows] for end in (0, 1))
        intervals = zip(("before", "after", "difference"), _runs.paired_by_problem(*ends), strict=True)
        table[name] = {when: found._asdict() for when, found in intervals}
    return table


def figures_of(rows: Sequence[Row], table: Mapping[str, Any], said: str = "") -> list[Figure]:
    """The pooled table, and what each seed reached; `said` stands before every name."""
    figures = []
    for name, one in table.items():
        figures += [Figure(f"{said}{name} {when}", found["mean"], "") for when, found in one.items()]
        figures += [
            Figure(f"{said}{name} difference, {end} end", one["difference"][key], "")
            for end, key in (("lower", "low"), ("upper", "high"))
        ]
    for row in rows:
        figures.append(Figure(f"{said}seed {row['seed']}: training", row["training_min"], "min"))
        figures.append(Figure(f"{said}seed {row['seed']}: trained", row["texts_per_s"], "texts/s"))
    return figures


def panel(rows: Sequence[Row], metric: str) -> Panel:
    """A metric's lines, by seed."""
    return {row["seed"]: row["curve"][metric] for row in rows}
