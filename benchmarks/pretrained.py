"""Does a real language model learn here? SmolLM2-135M-Instruct on generated reasoning tasks, several seeds.

    python -m benchmarks.pretrained [--model DIR] [--hardware gpu|cpu] [--seeds 0 1 2] [--parallel 1]
                                    [--steps 0] [--limit 3600.0] [--work results/pretrained] [--out FILE]
                                    [key=value ...]

The weights are those that `python -m pipelinerl.pretrained smollm2 DIR` made, without any supervised step. Of
each seed one run of `+domain=reasoning_gym` with its defaults for the hardware (`--steps`: another number of
optimizer steps). `--parallel` of them run beside each other: on GPUs all on the same cards, each engine with
a share of its card's memory; on a CPU each on two cores of its own. What one has reached that `--limit`
seconds ended lies in `--work` (`seed_N.partial`) and in no table; the same command begins it anew.

Success before and after is paired by test question, with 95 % bootstrap intervals over questions. All seeds
are asked the same ones, so a question counts once, with its mean over the seeds. Each seed's row is written
to `--work` at its end; seeds with a row there are not run again. The table goes to `--out`
(`results/pretrained_gpu.json` or `_cpu.json` beside this file), the figure beside it.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmarks._figures import RESULTS, Figure, at_least, at_most, command_line, report, write_json
from benchmarks._pretrained_figure import draw
from benchmarks._runs import paired_by_problem, texts_per_s
from benchmarks.gpu import runs
from benchmarks.gpu.runs import LimitedRun
from pipelinerl.config.files import load
from pipelinerl.domain import resolve_dotted
from pipelinerl.observe.history import Evaluation, read_evaluations, read_metrics

CORES = 2
CARD_SHARE = 0.6
"""Of a card's memory, for all the engines on it."""
PARITY = ("weights/parity_mean_abs", "weights/parity_max_abs", "weights/parity_limit")
"""Between engine and trainer, in nats, and what was allowed; the largest of a run is kept."""
KV_BYTES = 8 << 30
"""Of an engine beside others; 512 requests of 100 tokens take a seventh of it."""
GAIN_GOAL, MINUTES_GOAL = 0.2, 10.0


def overrides_of(options: Any, seed: int) -> list[str]:
    """What a run is told beyond the defaults."""
    given = [
        "+domain=reasoning_gym",
        f"hardware={options.hardware}",
        f"model_path={options.model.absolute()}",
        f"seed={seed}",
    ]
    if options.steps:
        given.append(f"finetune.max_train_steps={options.steps}")
    if options.hardware == "gpu" and options.parallel > 1:
        share = round(CARD_SHARE / options.parallel, 2)
        given.append(f"vllm_config.vllm_kwargs.gpu-memory-utilization={share}")
        # Given, because an engine that measures its room takes what its neighbours allocate for its own.
        given.append(f"+vllm_config.vllm_kwargs.kv-cache-memory-bytes={KV_BYTES}")
    return [*given, *options.overrides]


def start(options: Any, seed: int, place: int) -> LimitedRun:
    """The run of a seed, begun anew."""
    out = runs.fresh(options.work / f"seed_{seed}")
    command = runs.launcher(out, overrides_of(options, seed))
    if options.hardware == "cpu":
        cores = sorted(os.sched_getaffinity(0))
        mine = cores[CORES * place : CORES * (place + 1)] or cores
        command = ["taskset", "-c", ",".join(map(str, mine)), *command]
    return LimitedRun(command, options.work / f"seed_{seed}.log", {**os.environ, "HF_HUB_OFFLINE": "1"})


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


def test_problems(out: Path) -> list[Any]:
    """What a run's evaluations ask, in their order."""
    cfg = load(out)
    loader = resolve_dotted(str(cfg.dataset_loader), "dataset_loader")
    return list(loader(list(cfg.test_dataset_names), **dict(cfg.dataset_loader_params)))


def reached(
    name: str, out: Path, seconds: float, status: int, task_of: Callable[[Any], str]
) -> dict[str, Any]:
    """What the run `name` reached, and the task of each test problem.

    ValueError if it was ended before its second evaluation.
    """
    evaluations = read_evaluations(out)
    if len(evaluations) < 2:
        raise ValueError(f"{name}: {len(evaluations)} evaluations, exit status {status}")
    first, last = evaluations[0], evaluations[-1]
    records = read_metrics(out, "finetune")
    steps = [row for row in records if "stats/samples" in row]
    return {
        "status": status,
        "total_s": seconds,
        "steps": steps[-1]["stats/completed_steps"],
        "training_s": steps[-1]["time"] - steps[0]["time"],
        "samples_per_s": texts_per_s(records),
        "tasks": [task_of(problem) for problem in test_problems(out)],
        "before": [value or 0.0 for value in first.values["success"]],
        "after": [value or 0.0 for value in last.values["success"]],
        "failed": [sum(value is None for value in one.values["success"]) for one in (first, last)],
        "texts": last.version,
        "parity": {name: max(runs.values(records, name), default=None) for name in PARITY},
        "curve": curve_of(steps, evaluations),
    }


def table_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Before, after and paired difference with intervals over all questions and those of each family.

    Every seed is asked the same questions, since these follow from the names of the data sets.
    """
    tasks = rows[0]["tasks"]
    assert all(row["tasks"] == tasks for row in rows), "seeds were asked different questions"
    table = {}
    for name in ("all", *dict.fromkeys(tasks)):
        chosen = [index for index, task in enumerate(tasks) if name in ("all", task)]
        ends = ([[row[end][index] for index in chosen] for row in rows] for end in ("before", "after"))
        found = zip(("before", "after", "difference"), paired_by_problem(*ends), strict=True)
        table[name] = {when: interval._asdict() for when, interval in found}
    return table


def figures_of(rows: Sequence[Mapping[str, Any]], table: Mapping[str, Any], goals: bool) -> list[Figure]:
    """The pooled table, what each seed reached, and the goals for GPUs."""
    figures = []
    for name, one in table.items():
        for when in ("before", "after"):
            figures.append(Figure(f"{name}: success {when}", one[when]["mean"], ""))
        figures.append(Figure(f"{name}: difference", one["difference"]["mean"], ""))
        lower = one["difference"]["low"]
        goal = GAIN_GOAL if name == "all" and goals else None
        figures.append(at_least(f"{name}: difference, lower end", lower, "", goal))
        figures.append(Figure(f"{name}: difference, upper end", one["difference"]["high"], ""))
    for row in rows:
        seed = f"seed {row['seed']}"
        figures += [
            Figure(f"{seed}: success before", row["curve"][0]["success"], ""),
            Figure(f"{seed}: success after", row["curve"][-1]["success"], ""),
            Figure(f"{seed}: optimizer steps", row["steps"], "steps"),
            Figure(f"{seed}: trained", row["samples_per_s"], "samples/s"),
            at_most(f"{seed}: training", row["training_s"] / 60, "min", MINUTES_GOAL if goals else None),
        ]
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv)
    if (said := runs.no_model(options.model)) is not None:
        print(said, file=sys.stderr)
        return 2
    runs.leave_in_order()
    options.work = options.work.absolute()
    left = [seed for seed in options.seeds if not (options.work / f"seed_{seed}.json").is_file()]
    terminated = False
    while left and not terminated:
        now, left = left[: options.parallel], left[options.parallel :]
        beside = [(seed, start(options, seed, place)) for place, seed in enumerate(now)]
        for seed, run in beside:
            status = run.end(options.limit)
            terminated = terminated or run.terminated
            out = options.work / f"seed_{seed}"
            runs.keep(out, options.work / f"seed_{seed}.json")
            with runs.survived(f"seed {seed}"):
                found = reached(f"seed {seed}", out, run.seconds, status, itemgetter("task"))
                runs.keep_row(options.work / f"seed_{seed}.json", {"seed": seed, **found}, status)
    paths = [options.work / f"seed_{seed}.json" for seed in options.seeds]
    rows = [json.loads(path.read_text()) for path in paths if path.is_file()]
    if not rows:
        return 1
    out = options.out or RESULTS / f"pretrained_{options.hardware}.json"
    table = table_of(rows)
    settings = {
        "hardware": options.hardware,
        "seeds": [row["seed"] for row in rows],
        "parallel": options.parallel,
    }
    missed = report("pretrained", figures_of(rows, table, options.hardware == "gpu"), settings, out)
    kept = {**json.loads(out.read_text()), "overrides": options.overrides, "table": table, "rows": rows}
    write_json(out, kept)
    draw(rows, table, out.with_suffix(".png"))
    return 1 if missed or len(rows) < len(options.seeds) else 0


if __name__ == "__main__":
    sys.exit(main())
