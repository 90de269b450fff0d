"""Rows of runs by task: success on each held-out problem, told apart by group, and minutes of training.

One kind of rows of `benchmarks.experiment`; rows are kept in the results as they are.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._by_metric import ended, texts_per_s
from benchmarks._figures import Figure
from benchmarks._intervals import paired
from benchmarks._learning_figure import Panel
from benchmarks.gpu import runs
from pipelinerl.config.files import load
from pipelinerl.domain import resolve_dotted
from pipelinerl.observe.history import Evaluation, read_metrics

PARITY = ("weights/parity_mean_abs", "weights/parity_max_abs", "weights/parity_limit")
"""Between engine and trainer, in nats, and what was allowed; the largest of a run is kept."""


def group_of(problem: Mapping[str, Any]) -> str:
    """What problems are told apart by: how many instructions, or what their data set names."""
    if "num_constraints" in problem:
        return f"{problem['num_constraints']} instructions"
    return str(problem["dataset"]).rpartition("/")[2]


def test_problems(out: Path) -> list[Any]:
    """What a run's evaluations ask, in their order."""
    cfg = load(out)
    loader = resolve_dotted(str(cfg.dataset_loader), "dataset_loader")
    return list(loader(list(cfg.test_dataset_names), **dict(cfg.dataset_loader_params)))


def curve_of(steps: Sequence[Mapping[str, Any]], evaluations: Sequence[Evaluation]) -> list[dict[str, float]]:
    """Of each pass: texts trained by then, minutes since training began, and the share of right answers.

    `steps` are the trainer's records of its optimizer steps; minutes count from the end of the first.
    """
    rows = []
    for one in evaluations:
        before = [row["time"] for row in steps if row["stats/samples"] <= one.version]
        minutes = (before[-1] - steps[0]["time"]) / 60 if before else 0.0
        right = [value or 0.0 for value in one.values["success"]]
        rows.append({"texts": one.version, "minutes": minutes, "success": sum(right) / len(right)})
    return rows


def row_of(seed: int, out: Path, *_: object) -> dict[str, Any]:
    """What a run reached, and the group of each test problem.

    ValueError if it was ended before its second evaluation.
    """
    evaluations = ended(out)
    first, last = evaluations[0], evaluations[-1]
    records = read_metrics(out, "finetune")
    steps = [row for row in records if "stats/samples" in row]
    return {
        "seed": seed,
        "steps": steps[-1]["stats/completed_steps"],
        "training_s": steps[-1]["time"] - steps[0]["time"],
        "samples_per_s": texts_per_s(records),
        "tasks": [group_of(problem) for problem in test_problems(out)],
        "before": [value or 0.0 for value in first.values["success"]],
        "after": [value or 0.0 for value in last.values["success"]],
        "failed": [sum(value is None for value in one.values["success"]) for one in (first, last)],
        "texts": last.version,
        "parity": {name: max(runs.values(records, name), default=None) for name in PARITY},
        "curve": curve_of(steps, evaluations),
    }


def table_of(rows: Sequence[Mapping[str, Any]], *_: object) -> dict[str, dict[str, Any]]:
    """Before, after and paired difference with intervals over all questions and those of each family.

    Every seed is asked the same questions, since these follow from the names of the data sets.
    """
    tasks = rows[0]["tasks"]
    assert all(row["tasks"] == tasks for row in rows), "seeds were asked different questions"
    table = {}
    for name in ("all", *dict.fromkeys(tasks)):
        chosen = [index for index, task in enumerate(tasks) if name in ("all", task)]
        before, after = (
            [[row[end][index] for index in chosen] for row in rows] for end in ("before", "after")
        )
        found = zip(("before", "after", "difference"), paired(before, after), strict=True)
        table[name] = {when: interval._asdict() for when, interval in found}
    return table


def figures_of(rows: Sequence[Mapping[str, Any]], table: Mapping[str, Any], said: str = "") -> list[Figure]:
    """The pooled table, and what each seed reached; `said` stands before every name."""
    figures = []
    for name, one in table.items():
        for when in ("before", "after"):
            figures.append(Figure(f"{said}{name}: success {when}", one[when]["mean"], ""))
        difference = one["difference"]
        figures.append(Figure(f"{said}{name}: difference", difference["mean"], ""))
        figures.append(Figure(f"{said}{name}: difference, lower end", difference["low"], ""))
        figures.append(Figure(f"{said}{name}: difference, upper end", difference["high"], ""))
    for row in rows:
        seed = f"{said}seed {row['seed']}"
        figures += [
            Figure(f"{seed}: success before", row["curve"][0]["success"], ""),
            Figure(f"{seed}: success after", row["curve"][-1]["success"], ""),
            Figure(f"{seed}: optimizer steps", row["steps"], "steps"),
            Figure(f"{seed}: trained", row["samples_per_s"], "samples/s"),
            Figure(f"{seed}: training", row["training_s"] / 60, "min"),
        ]
    return figures


def panel(rows: Sequence[Mapping[str, Any]], metric: str) -> Panel:
    """Success by seed; other metrics are not kept."""
    return {f"seed {row['seed']}": [[(one["texts"], one[metric]) for one in row["curve"]]] for row in rows}
