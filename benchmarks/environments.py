"""What a model learns in environments of other ecosystems on two cores, several seeds.

    python -m benchmarks.environments [--domain verifiers|textarena] [--model DIR] [--seeds 0 1 2]
                                      [--work results/environments] [--out FILE]

`verifiers`: the taskset `halving` of `docs/examples/verifiers`, with the bundled guessing model unless
another is given. `textarena`: GuessTheNumber alone, with the folder that
`python -m pipelinerl.pretrained smollm2 DIR` made. Of each seed one run of `hardware=cpu`, evaluated before,
while and after it trains; a finished run in `--work` is not run again. Values before and after are paired by
test problem and pooled over the seeds, with 95 % bootstrap intervals. The table goes to `--out`
(`results/environments_DOMAIN.json` beside this file), the figure beside it.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _learning_figure, _runs
from benchmarks._figures import RESULTS, ROOT, Figure, command_line, report, write_json
from pipelinerl.observe.history import read_evaluations, read_metrics
from pipelinerl.observe.intervals import known

Row = dict[str, Any]
EXAMPLES = ROOT / "docs/examples/verifiers"
OVERRIDES = {
    "verifiers": [
        "dataset_loader_params.env.taskset.id=halving",
        "dataset_loader_params.count=200",
        "dataset_loader_params.test_count=192",
        "eval_every_n_versions=640",
        "wandb.use_wandb=false",
        "observe.rollout_page=false",
    ],
    "textarena": [
        "dataset_loader_params.games={Nim-v0: null, TicTacToe-v0-train: null}",
        "dataset_loader_params.test_count=40",
        "eval_every_n_versions=640",
        "wandb.use_wandb=false",
        "observe.rollout_page=false",
    ],
}
METRICS = ("reward", "success", "no_answer", "reward_halves", "metric_inside")
SHOWN = {
    "verifiers": {
        "reward_halves": "numbers that a guess rules out",
        "success": "guesses that rule out half",
        "metric_inside": "guesses in the range",
    },
    "textarena": {
        "reward": "reward of a game",
        "success": "games solved",
        "no_answer": "ended by a bad move",
    },
}
"""Panels of a domain's figure: metric and title."""


def find_examples() -> None:
    """Tasksets are looked for on the Python path, also by the processes of a run."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])


def row_of(seed: int, out: Path) -> Row:
    """What a run reached: values of each problem before and after, means on the way, and its time.

    ValueError if it was ended before its second evaluation.
    """
    found = read_evaluations(out)
    if len(found) < 2:
        raise ValueError(f"{out.name}: {len(found)} evaluations")
    names = [name for name in METRICS if all(len(known(one.values.get(name, []))) for one in found)]
    steps = [one for one in read_metrics(out, "finetune") if "stats/samples" in one]
    return {
        "seed": seed,
        "texts": found[-1].version,
        "steps": len(steps),
        "training_min": (steps[-1]["time"] - steps[0]["time"]) / 60,
        "texts_per_s": _runs.texts_per_s(steps),
        "values": {name: [found[0].values[name], found[-1].values[name]] for name in names},
        "curve": {
            name: [[one.version, float(known(one.values[name]).mean())] for one in found] for name in names
        },
    }


def table_of(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Before, after and paired difference of each metric with intervals, over the problems of all seeds."""
    sides = [(_side(row, 0), _side(row, 1)) for row in rows]
    table = {}
    for name in rows[0]["values"]:
        intervals = zip(("before", "after", "difference"), _runs.paired(sides, name), strict=True)
        table[name] = {when: found._asdict() for when, found in intervals}
    return table


def _side(row: Row, end: int) -> _runs.Values:
    """A row's values before (0) or after (1), by metric."""
    return {name: both[end] for name, both in row["values"].items()}


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


def panel(rows: Sequence[Row], metric: str) -> _learning_figure.Panel:
    """A metric's lines, by seed."""
    return {row["seed"]: row["curve"][metric] for row in rows}


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv)
    if options.model is None and options.domain == "textarena":
        print("--model names no folder; python -m pipelinerl.pretrained smollm2 FOLDER makes one")
        return 2
    find_examples()
    model = [] if options.model is None else [f"model_path={options.model.absolute()}"]
    overrides, rows = OVERRIDES[options.domain], []
    for seed in options.seeds:
        out = options.work.absolute() / f"{options.domain}_{seed}"
        _runs.launch(out, [*model, f"seed={seed}", *overrides], domain=options.domain)
        rows.append(row_of(seed, out))
    table = table_of(rows)
    out = options.out or RESULTS / f"environments_{options.domain}.json"
    settings = {"domain": options.domain, "seeds": options.seeds, "overrides": overrides}
    report("environments", figures_of(rows, table), settings, out)
    write_json(out, {**json.loads(out.read_text()), "table": table, "rows": rows})
    panels = {title: panel(rows, metric) for metric, title in SHOWN[options.domain].items()}
    _learning_figure.draw(panels, out.with_suffix(".png"), "percent, held-out problems")
    return 0


if __name__ == "__main__":
    sys.exit(main())
