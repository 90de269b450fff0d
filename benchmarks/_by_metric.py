"""Rows of runs by metric: values of each held-out problem before and after, and means on the way.

One kind of rows of `benchmarks.experiment`; rows are kept in the results as they are.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._figures import Figure
from benchmarks._intervals import paired
from benchmarks._learning_figure import Panel
from benchmarks._spec import Arm, Spec
from pipelinerl.domain import resolve_dotted
from pipelinerl.observe.history import Evaluation, read_evaluations, read_metrics, series
from pipelinerl.observe.intervals import known

Row = dict[str, Any]


def ended(out: Path) -> list[Evaluation]:
    """Evaluations of a run; ValueError if it was ended before its second one."""
    found = read_evaluations(out)
    if len(found) < 2:
        raise ValueError(f"{out.name}: {len(found)} evaluations; two are needed, before and after training")
    return found


def texts_per_s(records: Sequence[Mapping[str, Any]]) -> float:
    """Between the ends of the first and the last optimizer step; ValueError for fewer than two."""
    steps = [(record["stats/samples"], record["time"]) for record in records if "stats/samples" in record]
    if len(steps) < 2:
        raise ValueError(f"{len(steps)} optimizer steps; a rate needs two, see finetune.max_train_steps")
    (first, began), (last, ended_at) = steps[0], steps[-1]
    return float((last - first) / (ended_at - began))


def row_of(seed: int, out: Path, spec: Spec, arm: Arm) -> Row:
    """What a run reached: values of each problem before and after, means on the way, and its time.

    ValueError if it was ended before its second evaluation.
    """
    found = _with_derived(ended(out), out, spec)
    names = [name for name in spec.metrics if all(len(known(one.get(name, []))) for _, one in found)]
    steps = [one for one in read_metrics(out, "finetune") if "stats/samples" in one]
    curve = {name: [[at, float(known(one[name]).mean())] for at, one in found] for name in names}
    last = {name: _best(curve[name]) if arm.best else -1 for name in names}
    actor = read_metrics(out, "actor") if spec.tenths else []
    means = {name: tenths(actor, f"actor/{metric}") for name, metric in spec.tenths.items()}
    means |= {name: tenths(steps, metric) for name, metric in spec.trainer_tenths.items()}
    return {
        "seed": seed,
        "texts": found[-1][0],
        "tokens": [_tokens(steps, at) for at, _ in found],
        "steps": steps[-1]["stats/completed_steps"],
        "training_min": (steps[-1]["time"] - steps[0]["time"]) / 60,
        "texts_per_s": texts_per_s(steps),
        "values": {name: [found[0][1][name], found[last[name]][1][name]] for name in names},
        "curve": curve,
        **({"tenths": means} if means else {}),
    }


def _with_derived(
    found: Sequence[Evaluation], out: Path, spec: Spec
) -> list[tuple[int, dict[str, Sequence[float | None]]]]:
    """Version and values of each evaluation, those that the specification derives among them."""
    more = {name: resolve_dotted(place, "derived")(out) for name, place in spec.derived.items()}
    return [(one.version, {**one.values, **{name: of(one) for name, of in more.items()}}) for one in found]


def _tokens(steps: Sequence[Mapping[str, Any]], version: int) -> float:
    """Labelled tokens that were trained until a version."""
    before = [one for one in steps if one["stats/samples"] <= version]
    return float(sum(one.get("rl/num_output_tokens_sum", 0) for one in before))


def _best(curve: Sequence[Sequence[float]]) -> int:
    return int(np.argmax([mean for _, mean in curve]))


def tenths(records: list[dict[str, Any]], metric: str) -> list[float]:
    """Means of a metric over the tenths of training, fewer where it has fewer records."""
    return means_of_tenths(series(records, metric).y)


def means_of_tenths(values: Sequence[float] | np.ndarray) -> list[float]:
    """Means over ten equal parts, fewer of fewer values."""
    parts = np.array_split(np.asarray(values, np.float64), min(10, len(values)) or 1)
    return [float(part.mean()) for part in parts if len(part)]


def table_of(rows: Sequence[Row], own_problems: bool = False) -> dict[str, dict[str, Any]]:
    """Before, after and paired difference of each metric, with intervals over problems."""
    table = {}
    for name in rows[0]["values"]:
        before, after = ([row["values"][name][end] for row in rows] for end in (0, 1))
        intervals = zip(("before", "after", "difference"), paired(before, after, own_problems), strict=True)
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
        seed = f"{said}seed {row['seed']}"
        figures += [
            Figure(f"{seed}: {name} after", float(known(ends[1]).mean()), "")
            for name, ends in row["values"].items()
        ]
        figures.append(Figure(f"{seed}: training", row["training_min"], "min"))
        figures.append(Figure(f"{seed}: trained", row["texts_per_s"], "texts/s"))
    return figures


def panel(rows: Sequence[Row], metric: str) -> Panel:
    """A metric's lines, by seed."""
    return {f"seed {row['seed']}": [row["curve"][metric]] for row in rows}
