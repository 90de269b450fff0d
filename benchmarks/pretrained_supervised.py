"""Imitation beside reinforcement learning: SmolLM2-135M-Instruct on the answers of generated reasoning tasks.

    python -m benchmarks.pretrained_supervised [--model DIR] [--hardware gpu|cpu] [--seeds 0 1 2]
        [--rates 5e-5 2e-4] [--steps 0] [--gpu CARD] [--per-card 6] [--limit 560.0]
        [--work results/pretrained_supervised] [--reinforced FILE] [--out FILE] [key=value ...]

Of each seed and learning rate one run of `+domain=reasoning_gym` that samples nothing while it trains: it
imitates the families' own answers to training questions (`reasoning_gym.reward=gold`, `policy_loss=sft`), in
all as many answers as `benchmarks run pretrained` trains on with the same hardware, so questions come again.
Weights, prompts, held-out questions, sampling and engine of the evaluations are those of that script, whose
result (`--reinforced`; `results/pretrained_gpu.json` or `_cpu.json` beside this file) it is compared with.

Every run is evaluated ten times on the way, on the held-out questions and on validation questions. The latter
are a tenth of each family's, which imitation does not train on, but reinforcement learning may have. The rate
is chosen by validation; reported are the weights behind the last step, and those of each seed's best pass by
validation. Intervals are over questions, as in that script, and for the difference of the two ways also over
seeds (Student's t).

`--per-card` runs at a time share the card `--gpu` (every visible one unless given), each with engine and
trainer together; `--limit` seconds are for the call. A finished run's row goes to `--work` and is not made
again, and the table (`--out`, `results/pretrained_supervised.json`) is written anew behind every run.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _by_task
from benchmarks._figures import RESULTS, Figure, command_line, report, write_json
from benchmarks._runs import paired_by_problem
from benchmarks._seeds import t_interval
from benchmarks.gpu import runs
from benchmarks.gpu.side_by_side import UNCOMPILED, Task, on_a_card, run_all, slots
from pipelinerl.config.compose import compose
from pipelinerl.observe.history import read_evaluations

Row = dict[str, Any]
VALIDATION = 0.1
"""Share of a family's questions."""
EVALUATIONS = 10
LEAST_S = 100.0
"""With less left no run is started on a card: its engine would hardly be up."""
KV_BYTES = 2 << 30
WAYS = {"end": "after", "best": "best"}
"""The weights that are reported, and where a row has their answers."""


def size_of(options: argparse.Namespace) -> tuple[int, int]:
    """Optimizer steps of a run and texts of each, which are those of reinforcement learning."""
    tree = compose(["+domain=reasoning_gym", f"hardware={options.hardware}", *options.overrides]).tree
    tune = tree.finetune
    texts = int(tune.train_batch_size) * int(tune.gradient_accumulation_passes)
    return int(options.steps or tune.max_train_steps), texts


def overrides_of(options: argparse.Namespace, seed: int, rate: float) -> list[str]:
    """What a run is told beyond the defaults."""
    steps, texts = size_of(options)
    every = max(1, steps // EVALUATIONS) * texts
    eager = '+vllm_config.vllm_kwargs.enforce-eager=""'  # ten short evaluations do not repay a compilation
    card = [*on_a_card(KV_BYTES, http_processes=1), *UNCOMPILED, eager]
    return [
        "+domain=reasoning_gym",
        f"hardware={options.hardware}",
        f"model_path={options.model}",
        f"seed={seed}",
        *(card if options.hardware == "gpu" else ()),
        "reasoning_gym.reward=gold",
        "finetune.rl.policy_loss=sft",
        "finetune.attempts=1",
        f"finetune.max_train_steps={steps}",
        f"finetune.learning_rate={rate}",
        "finetune.lr_scheduler_type=cosine",
        # Training waits for each pass, and a pass sees one version: nothing else needs the weights.
        "max_lag=0",
        f"finetune.weight_update_interval={every}",
        f"eval_every_n_versions={every}",
        "test_dataset_names=[test,val]",
        f"dataset_loader_params.validation={VALIDATION}",
        "observe.rollout_page=false",
        *options.overrides,
    ]


def row_of(seed: int, rate: float, out: Path, status: int) -> Row:
    """What a run reached on held-out and on validation questions; ValueError with one evaluation or none."""
    found = {"status": status, **_by_task.row_of(seed, out, itemgetter("dataset"))}
    parts = {
        part: [index for index, name in enumerate(found["tasks"]) if name.startswith(part)]
        for part in ("test", "val")
    }
    passes = [[value or 0.0 for value in one.values["success"]] for one in read_evaluations(out)]
    success = {part: [_mean(right, chosen) for right in passes] for part, chosen in parts.items()}
    best = int(np.argmax(success["val"]))
    curve = [
        one | {"success": test, "validation": val}
        for one, test, val in zip(found["curve"], success["test"], success["val"], strict=True)
    ]
    answers = {
        name: [right[index] for index in parts["test"]]
        for name, right in {"before": passes[0], "after": passes[-1], "best": passes[best]}.items()
    }
    names = [found["tasks"][index].partition("/")[2] for index in parts["test"]]
    chosen = {"texts": curve[best]["texts"], "validation": success["val"][best]}
    own = {"seed": seed, "rate": rate, "tasks": names, "validation_questions": len(parts["val"])}
    return {**found, **own, **answers, "chosen": chosen, "curve": curve}


def _mean(right: Sequence[float], chosen: Sequence[int]) -> float:
    return float(np.mean([right[index] for index in chosen]))


def by_validation(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of the rate that validation prefers, for each of `WAYS`, its mean over the seeds."""
    rates = dict.fromkeys(row["rate"] for row in rows)
    of_rate = {rate: [row for row in rows if row["rate"] == rate] for rate in rates}
    whole = max(map(len, of_rate.values()))  # a rate that lacks seeds is no candidate
    candidates = [found for found in of_rate.values() if len(found) == whole]

    def last(found: Sequence[Row]) -> float:
        return float(np.mean([row["curve"][-1]["validation"] for row in found]))

    def best(found: Sequence[Row]) -> float:
        return float(np.mean([row["chosen"]["validation"] for row in found]))

    return {"end": max(candidates, key=last), "best": max(candidates, key=best)}


def beyond(rows: Sequence[Row], way: str, reinforced: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Reinforcement learning minus imitation on the same questions; None where these are not the same.

    `difference` has an interval over questions, `seeds` mean and half width over seeds of the same number.
    """
    theirs = {row["seed"]: row for row in reinforced}
    pairs = [(row, theirs[row["seed"]]) for row in rows if row["seed"] in theirs]
    if not pairs or any(row["tasks"] != their["tasks"] for row, their in pairs):
        return None
    imitated = [row[WAYS[way]] for row, _ in pairs]
    learned = [their["after"] for _, their in pairs]
    found = zip(("supervised", "reinforced", "difference"), paired_by_problem(imitated, learned), strict=True)
    gains = [float(np.mean(b) - np.mean(a)) for a, b in zip(imitated, learned, strict=True)]
    mean, half = t_interval(gains)
    return {name: one._asdict() for name, one in found} | {"seeds": {"mean": mean, "half": half}}


def summary(rows: Sequence[Row], reinforced: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each of `WAYS` the chosen rate, the table by family, and the comparison."""
    return {
        way: {
            "rate": chosen[0]["rate"],
            "table": _by_task.table_of([row | {"after": row[WAYS[way]]} for row in chosen]),
            "beyond": beyond(chosen, way, reinforced),
        }
        for way, chosen in by_validation(rows).items()
    }


def figures_of(rows: Sequence[Row], found: Mapping[str, Mapping[str, Any]]) -> list[Figure]:
    """The pooled tables, the comparison, and what each run reached."""
    figures = []
    for way, one in found.items():
        figures.append(Figure(f"{way}: learning rate", one["rate"], ""))
        for name, ends in one["table"].items():
            figures += [
                Figure(f"{way}: {name}: {when}", interval["mean"], "") for when, interval in ends.items()
            ]
        if against := one["beyond"]:
            difference = against["difference"]
            figures += [
                Figure(f"{way}: reinforced minus supervised", difference["mean"], ""),
                Figure(f"{way}: reinforced minus supervised, lower end", difference["low"], ""),
                Figure(f"{way}: reinforced minus supervised, upper end", difference["high"], ""),
            ]
    for row in rows:
        name = f"seed {row['seed']}, rate {row['rate']:g}"
        figures += [
            Figure(f"{name}: success behind the last step", row["curve"][-1]["success"], ""),
            Figure(f"{name}: answers imitated at its best pass", row["chosen"]["texts"], "answers"),
            Figure(f"{name}: training and evaluations", row["training_s"] / 60, "min"),
        ]
    return figures


def row_file(options: argparse.Namespace, seed: int, rate: float) -> Path:
    work: Path = options.work
    return work / f"seed_{seed}_rate_{rate:g}.json"


def write_all(options: argparse.Namespace) -> None:
    """The table of what there is; nothing before the first run has ended."""
    paths = [row_file(options, seed, rate) for rate in options.rates for seed in options.seeds]
    rows = [json.loads(path.read_text()) for path in paths if path.is_file()]
    if not rows:
        return
    reinforced = json.loads(options.reinforced.read_text())["rows"] if options.reinforced.is_file() else []
    found = summary(rows, reinforced)
    settings = {
        "hardware": options.hardware,
        "seeds": options.seeds,
        "rates": options.rates,
        "runs at a time on a card": options.per_card,
        "validation share": VALIDATION,
    }
    report("pretrained_supervised", figures_of(rows, found), settings, options.out)
    kept = json.loads(options.out.read_text()) | {"overrides": options.overrides, "reported": found}
    write_json(options.out, kept | {"rows": rows})
    for way, one in found.items():
        if one["beyond"] is None:
            print(f"{way}: {options.reinforced} has no rows with these questions, nothing is compared")


def task_of(options: argparse.Namespace, seed: int, rate: float) -> Task:
    """One run; its row is kept and the table written behind it."""
    path = row_file(options, seed, rate)
    out = runs.fresh(path.with_suffix(""))

    def keep(status: int) -> bool:
        runs.keep(out, path)
        with runs.survived(path.stem):
            row = row_of(seed, rate, out, status)
            runs.keep_row(path, row, status)
            write_all(options)
        return path.is_file()

    command = runs.launcher(out, overrides_of(options, seed, rate))
    return Task(path.stem, command, options.work / f"{path.stem}.log", keep)


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv)
    end = time.monotonic() + options.limit
    if (said := runs.no_model(options.model)) is not None:
        print(said)
        return 2
    runs.settle(options, "pretrained_supervised")
    options.reinforced = options.reinforced or RESULTS / f"pretrained_{options.hardware}.json"
    os.environ["HF_HUB_OFFLINE"] = "1"
    # The first rate of every seed before the second, so that a call that is cut short has a whole table.
    asked = [(seed, rate) for rate in options.rates for seed in options.seeds]
    tasks = [task_of(options, *key) for key in asked if not row_file(options, *key).is_file()]
    run_all(
        tasks, slots(options.hardware, options.per_card), end, LEAST_S if options.hardware == "gpu" else 0.0
    )
    if not tasks:
        write_all(options)
    left = [path.stem for key in asked if not (path := row_file(options, *key)).is_file()]
    print(f"left: {', '.join(left) or 'none'}", flush=True)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
