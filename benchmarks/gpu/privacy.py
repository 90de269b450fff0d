"""The privacy agent from scratch on cards: a model by the recipe, then reinforcement learning with vLLM.

    python -m benchmarks.gpu.privacy bootstrap [--limit 420] [--work DIR] [--out FILE] [key=value ...]
    python -m benchmarks.gpu.privacy rl        [--limit 420] [--work DIR] [--out FILE] [key=value ...]

Both use `+preset=privacy_hopqa_from_scratch`; further overrides go to the part that is run. `bootstrap`
imitates scripted play on one card and prints what it reached per skill; if the rate of the first steps says
that the limit comes before the end, it starts again with as many tokens as fit. `rl` trains that model (the
bundled one if there is none) and prints success and leakage on companies without training chains before and
after, throughput, and what updates of the weights cost; curves lie beside the table. Both keep what they have
as JSON also when the limit ends them.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._figures import ROOT, Figure, at_least, at_most, report
from benchmarks.gpu.runs import LimitedRun, fresh, keep, launcher, leave_in_order, records, values

PRESET = ["+domain=privacy_hopqa", "+preset=privacy_hopqa_from_scratch"]
PEAK_FLOPS = 990e12
BUNDLED = ROOT / "domains/privacy_hopqa/checkpoint"
STEP = re.compile(r"^step (\d+)/(\d+)  loss ([\d.]+)  ([\d.]+)M tokens  (\d+)k tok/s")
SIZE = re.compile(r"^model: ([\d.]+)M parameters")
METRICS = (
    "success",
    "success_if_well_formed",
    "leak",
    "plan_gold_retrieved",
    "choose_correct",
    "read_accuracy",
)
"""What is compared before and after."""
BUDGET = "bootstrap.budget="
SEEN = 4
"""Reports of the recipe after which its rate is believed; compiling comes before the first."""
AROUND_S = 60.0
"""What a second start needs beside its steps: tokenizer, compilers that are warm, gates."""
LEAST_SKILL = 0.5
"""Below, every rollout of a group fails alike and nothing is trained."""
LEAST_BUDGET = 0.15
"""With fewer tokens nothing is learned; the slow start may then go on."""
REPORT_S = 40.0
"""Kept of the limit for the report of a run that had to be stopped."""


def bootstrap_figures(log: str, recipe: dict[str, Any] | None) -> list[Figure]:
    """Rate, MFU and gates, from what the recipe printed and, once it has ended, its `recipe.json`."""
    figures = []
    size = next((float(m[1]) for line in log.splitlines() if (m := SIZE.match(line))), None)
    steps = [m for line in log.splitlines() if (m := STEP.match(line))]
    if size is not None:
        figures.append(Figure("bootstrap: parameters", size, "M"))
    if steps:
        last = steps[-1]
        rate = 1e3 * float(last[5])
        figures.append(Figure("bootstrap: tokens", float(last[4]), "M"))
        figures.append(Figure("bootstrap: training rate", rate, "tok/s"))
        figures.append(Figure("bootstrap: loss at the end", float(last[3]), "nats"))
        if size is not None:
            mfu = 100 * 6 * size * 1e6 * rate / PEAK_FLOPS
            figures.append(Figure("bootstrap: MFU", mfu, "%"))
    if recipe is not None:
        figures.append(Figure("bootstrap: everything", recipe["seconds"], "s"))
        for gate in recipe["gates"]:
            name, least = f"bootstrap: {gate['kind']} right", gate["minimum"]
            found = gate["accuracy"]
            figures.append(
                Figure(name, found, "share") if least is None else at_least(name, found, "share", least)
            )
    return figures


def rl_figures(
    written: dict[str, Any], trainer: list[dict[str, Any]], actor: list[dict[str, Any]]
) -> list[Figure]:
    """`written` is the run's report.json, the others are metrics of its roles."""
    figures = []
    for metric in METRICS:
        compared = written.get("comparisons", {}).get(metric)
        if compared is None:
            continue
        for when in ("before", "after"):
            figures.append(Figure(f"rl: {metric}, {when}", compared[when]["mean"], "share"))
        change = compared["difference"]
        label = f"rl: {metric}, change [{change['low']:+.3f}, {change['high']:+.3f}]"
        figures.append(Figure(label, change["mean"], "share"))
    rates = written.get("rates", {})
    for key, name, unit in (
        ("elapsed_s", "rl: from the first to the last record", "s"),
        ("optimizer_steps", "rl: optimizer steps", "steps"),
        ("trained_texts_per_second", "rl: trained texts", "texts/s"),
        ("generated_tokens_per_second_median", "rl: generated tokens, median", "tok/s"),
        ("trainer_tokens_per_second_while_working", "rl: trainer while it works", "tok/s"),
        ("lag_mean_texts", "rl: age of trained tokens, mean", "texts"),
        ("importance_ratio_mean", "rl: importance ratio, mean", ""),
    ):
        if rates.get(key) is not None:
            figures.append(Figure(name, float(rates[key]), unit))
    paused = [1e3 * one for one in values(trainer, "weights/max_paused_s")]
    if paused:
        figures.append(
            at_most("rl: engine paused by an update, median", statistics.median(paused), "ms", 100.0)
        )
        figures.append(Figure("rl: engine paused by an update, longest", max(paused), "ms"))
        span = float(trainer[-1]["time"]) - float(trainer[0]["time"])
        if span > 0:
            share = sum(paused[1:]) / 1e3 / span  # the first record's pause lies before the span
            figures.append(at_most("rl: share of the time paused", share, "share", 0.05))
    for key in ("weights/parity_mean_abs", "weights/parity_max_abs"):
        if found := values(trainer, key):
            figures.append(Figure(f"rl: {key.removeprefix('weights/')}, largest", max(found), "nats"))
    idle = values(actor, "actor/requests/engine_idle_share")
    if idle:
        figures.append(at_most("rl: engine without requests", idle[-1], "share", 0.05))
    return figures


@dataclass(frozen=True)
class Progress:
    """Where the recipe stood at a moment, in seconds since its start."""

    at_s: float
    share: float
    """Of all its steps."""


def budget_that_fits(seen: Sequence[Progress], limit_s: float) -> float | None:
    """Share of its tokens that a new start could train on until the limit; None if this one will end."""
    first, last = seen[0], seen[-1]
    rate = (last.share - first.share) / (last.at_s - first.at_s)
    if last.at_s + (1.0 - last.share) / rate + AROUND_S / 4 <= limit_s:
        return None
    return max(0.0, (limit_s - last.at_s - AROUND_S) * rate)


def asked_budget(command: Sequence[str]) -> float:
    """The share of the recipe's tokens that a command line asks for."""
    budgets = [word for word in command if word.startswith(BUDGET)]
    return float(budgets[-1].removeprefix(BUDGET)) if budgets else 1.0


def watched(command: Sequence[str], log: Path, limit_s: float) -> LimitedRun:
    """The recipe, started again with a smaller budget when its first steps are too slow for the limit."""
    run = LimitedRun(command, log)
    seen: list[Progress] = []

    def enough() -> bool:
        steps = [m for line in log.read_text(errors="replace").splitlines() if (m := STEP.match(line))]
        share = int(steps[-1][1]) / int(steps[-1][2]) if steps else 0.0
        if share > (seen[-1].share if seen else 0.0):
            seen.append(Progress(run.seconds, share))
        return len(steps) >= SEEN and len(seen) > 1

    if not run.until(enough, limit_s) or len(seen) < 2 or run.process.poll() is not None:
        return run
    share = budget_that_fits(seen, limit_s)
    if share is None or share * asked_budget(command) < LEAST_BUDGET:
        return run
    run.stop()
    print(
        f"{seen[-1].share:.0%} after {seen[-1].at_s:.0f} s is too slow; again with {share:.0%} of it",
        flush=True,
    )
    log.rename(log.with_suffix(".first.log"))
    again = LimitedRun([*command, f"{BUDGET}{share * asked_budget(command):.3f}"], log)
    again.begun_earlier(run)
    return again


def bootstrap(options: argparse.Namespace) -> int:
    model, log = options.work / "model", options.out.with_suffix(".recipe.log")
    command = [sys.executable, "-m", "pipelinerl.bootstrap", *PRESET, f"hardware={options.hardware}"]
    log.unlink(missing_ok=True)
    (model / "recipe.json").unlink(missing_ok=True)  # it says that a model is finished
    run = watched([*command, f"bootstrap.out={model}", *options.overrides], log, options.limit)
    status = run.end(options.limit)
    print(run.said())
    recipe = model / "recipe.json"
    found = json.loads(recipe.read_text()) if recipe.is_file() else None
    settings = {"status": status, "hardware": options.hardware, "seconds": round(run.seconds, 1)}
    missed = report("gpu_privacy_bootstrap", bootstrap_figures(log.read_text(), found), settings, options.out)
    return 1 if found is None else min(missed, 1)


def usable(model: Path) -> bool:
    """Whether the recipe has ended there with a model that answers often enough to be rewarded at all."""
    recipe = model / "recipe.json"
    if not (model / "model.safetensors").is_file() or not recipe.is_file():
        return False
    skills = {gate["kind"]: gate["accuracy"] for gate in json.loads(recipe.read_text())["gates"]}
    return all(skills.get(kind, 0.0) >= LEAST_SKILL for kind in ("read_yes", "resolve_yes", "choose_first"))


def rl(options: argparse.Namespace) -> int:
    model, out = options.work / "model", fresh(options.work / "run")
    if not usable(model):
        print(f"{model} is no model that can read and resolve; the bundled one is trained", flush=True)
        model = BUNDLED
    given = [*PRESET, f"hardware={options.hardware}", f"model_path={model}", *options.overrides]
    run = LimitedRun(launcher(out, given), options.out.with_suffix(".launcher.log"))
    status = run.end(options.limit - REPORT_S)
    if status:
        print(run.said(25), flush=True)
        written = LimitedRun(
            [sys.executable, "-m", "pipelinerl.report", str(out)], options.work / "report.log"
        )
        written.end(REPORT_S)
    path = out / "report" / "report.json"
    found = json.loads(path.read_text()) if path.is_file() else {}
    for curve in (out / "report").glob("*.png"):
        shutil.copy(curve, options.out.with_name(f"gpu_privacy_{curve.name}"))
    keep(out, options.out)
    trainer, actor = records(out, "finetune"), records(out, "actor")
    settings = {
        "status": status,
        "model": model.name,
        "evaluations": ", ".join(map(str, found.get("versions", []))),
    }
    missed = report("gpu_privacy_rl", rl_figures(found, trainer, actor), settings, options.out)
    record = json.loads(options.out.read_text())
    record |= {"overrides": given, "evaluations": found.get("evaluations"), "rates": found.get("rates")}
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if status else min(missed, 1)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["bootstrap", "rl"])
    parser.add_argument("--hardware", choices=["cpu", "gpu"], default="gpu")
    parser.add_argument("--limit", type=float, default=420.0, help="seconds")
    parser.add_argument("--work", type=Path, default=Path("results/gpu_privacy"))
    parser.add_argument("--out", type=Path, help="the table as JSON, logs beside it")
    parser.add_argument("overrides", nargs="*", help="key=value")
    options = parser.parse_intermixed_args()
    leave_in_order()
    options.work = options.work.absolute()
    options.work.mkdir(parents=True, exist_ok=True)
    options.out = options.out or options.work / f"gpu_privacy_{options.part}.json"
    options.out.parent.mkdir(parents=True, exist_ok=True)
    return bootstrap(options) if options.part == "bootstrap" else rl(options)


if __name__ == "__main__":
    sys.exit(main())
