"""The privacy agent from scratch on cards: a model by the recipe, then reinforcement learning with vLLM.

    python -m benchmarks.gpu.privacy bootstrap|rl [--hardware gpu|cpu] [--limit 420.0]
                                     [--work results/gpu_privacy] [--out FILE] [key=value ...]

Both parts use `+preset=privacy_hopqa_from_scratch`; further overrides go to the part that is run. `bootstrap`
imitates scripted play on one card and prints what it reached per skill (`bootstrap.budget=0.5`: with half of
the tokens). `rl` trains that model (the bundled one if there is none) and prints success and leakage on
companies without training chains before and after, throughput, and what updates of the weights cost; curves
and logs lie beside the table. Both keep what they have as JSON also when the limit (in seconds) ends them.
`--hardware cpu` rehearses.
"""

import argparse
import json
import re
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks._figures import ROOT, Figure, at_least, at_most, command_line, report, write_json
from benchmarks.gpu.runs import LimitedRun, fresh, keep, launcher, leave_in_order, report_of, values
from pipelinerl.observe.history import read_metrics

PRESET = ["+domain=privacy_hopqa", "+preset=privacy_hopqa_from_scratch"]
PEAK_FLOPS = 990e12
BUNDLED = ROOT / "domains/privacy_hopqa/checkpoint"
STEP = re.compile(r"^step (\d+)/(\d+)  loss ([\d.]+)  ([\d.]+)M tokens  (\d+)k tok/s", re.MULTILINE)
SIZE = re.compile(r"^model: ([\d.]+)M parameters", re.MULTILINE)
COMPARED = (
    "success",
    "success_if_well_formed",
    "leak",
    "plan_gold_retrieved",
    "choose_correct",
    "read_accuracy",
)
"""Metrics that are shown before and after."""
RATES = (
    ("elapsed_s", "rl: from the first to the last record", "s"),
    ("optimizer_steps", "rl: optimizer steps", "steps"),
    ("trained_texts_per_second", "rl: trained texts", "texts/s"),
    ("generated_tokens_per_second_median", "rl: generated tokens, median", "tok/s"),
    ("trainer_tokens_per_second_while_working", "rl: trainer while it works", "tok/s"),
    ("lag_mean_texts", "rl: age of trained tokens, mean", "texts"),
    ("importance_ratio_mean", "rl: importance ratio, mean", ""),
)
LEAST_SKILL = 0.5
"""Below, every rollout of a group fails alike and nothing is trained."""
REPORT_S = 40.0
"""Kept of the limit for the report of a run that had to be stopped."""


def bootstrap_figures(log: str, recipe: dict[str, Any] | None) -> list[Figure]:
    """Rate, MFU and gates, from what the recipe printed and, once it has ended, its `recipe.json`."""
    figures = []
    size, steps = SIZE.search(log), STEP.findall(log)
    if size is not None:
        figures.append(Figure("bootstrap: parameters", float(size[1]), "M"))
    if steps:
        _, _, loss, tokens, rate = map(float, steps[-1])
        figures.append(Figure("bootstrap: tokens", tokens, "M"))
        figures.append(Figure("bootstrap: training rate", 1e3 * rate, "tok/s"))
        figures.append(Figure("bootstrap: loss at the end", loss, "nats"))
        if size is not None:
            mfu = 100 * 6 * float(size[1]) * 1e6 * 1e3 * rate / PEAK_FLOPS
            figures.append(Figure("bootstrap: MFU", mfu, "%"))
    if recipe is not None:
        figures.append(Figure("bootstrap: everything", recipe["seconds"], "s"))
        for gate in recipe["gates"]:
            name = f"bootstrap: {gate['kind']} right"
            figures.append(at_least(name, gate["accuracy"], "share", gate["minimum"]))
    return figures


def rl_figures(
    written: dict[str, Any], trainer: list[dict[str, Any]], actor: list[dict[str, Any]]
) -> list[Figure]:
    """`written` is the run's report.json, the others are metrics of its roles."""
    figures = []
    found = written.get("comparisons", {})
    for metric in [metric for metric in COMPARED if metric in found]:
        before, after, change = (found[metric][one] for one in ("before", "after", "difference"))
        figures.append(Figure(f"rl: {metric}, before", before["mean"], "share"))
        figures.append(Figure(f"rl: {metric}, after", after["mean"], "share"))
        label = f"rl: {metric}, change [{change['low']:+.3f}, {change['high']:+.3f}]"
        figures.append(Figure(label, change["mean"], "share"))
    rates = written.get("rates", {})
    figures += [
        Figure(name, float(rates[key]), unit) for key, name, unit in RATES if rates.get(key) is not None
    ]
    if paused := [1e3 * one for one in values(trainer, "weights/max_paused_s")]:
        median = statistics.median(paused)
        figures.append(at_most("rl: engine paused by an update, median", median, "ms", 100.0))
        figures.append(Figure("rl: engine paused by an update, longest", max(paused), "ms"))
        span = float(trainer[-1]["time"]) - float(trainer[0]["time"])
        if span > 0:
            share = sum(paused[1:]) / 1e3 / span  # the first record's pause lies before the span
            figures.append(at_most("rl: share of the time paused", share, "share", 0.05))
    for key in ("parity_mean_abs", "parity_max_abs"):
        if apart := values(trainer, f"weights/{key}"):
            figures.append(Figure(f"rl: {key}, largest", max(apart), "nats"))
    if idle := values(actor, "actor/requests/engine_idle_share"):
        figures.append(at_most("rl: engine without requests", idle[-1], "share", 0.05))
    return figures


def bootstrap(options: argparse.Namespace) -> int:
    model, log = options.work / "model", options.out.with_suffix(".recipe.log")
    recipe = model / "recipe.json"
    log.unlink(missing_ok=True)
    recipe.unlink(missing_ok=True)  # it says that a model is finished
    command = [sys.executable, "-m", "pipelinerl.bootstrap", *PRESET, f"hardware={options.hardware}"]
    run = LimitedRun([*command, f"bootstrap.out={model}", *options.overrides], log)
    status = run.end(options.limit)
    print(run.said())
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
        command = [sys.executable, "-m", "pipelinerl.report", str(out)]
        LimitedRun(command, options.work / "report.log").end(REPORT_S)
    found = report_of(out)
    for curve in (out / "report").glob("*.png"):
        shutil.copy(curve, options.out.with_name(f"gpu_privacy_{curve.name}"))
    keep(out, options.out)
    figures = rl_figures(found, read_metrics(out, "finetune"), read_metrics(out, "actor"))
    versions = ", ".join(map(str, found.get("versions", [])))
    settings = {"status": status, "model": model.name, "evaluations": versions}
    missed = report("gpu_privacy_rl", figures, settings, options.out)
    more = {"overrides": given, "evaluations": found.get("evaluations"), "rates": found.get("rates")}
    write_json(options.out, json.loads(options.out.read_text()) | more)
    return 1 if status else min(missed, 1)


def main() -> int:
    options = command_line(__doc__)
    parts = {"bootstrap": bootstrap, "rl": rl}
    part, *options.overrides = options.overrides or [""]
    if part not in parts:
        raise SystemExit(f"{part!r}: say first what to run, {' or '.join(parts)}")
    leave_in_order()
    options.work = options.work.absolute()
    options.work.mkdir(parents=True, exist_ok=True)
    options.out = options.out or options.work / f"gpu_privacy_{part}.json"
    options.out.parent.mkdir(parents=True, exist_ok=True)
    return parts[part](options)


if __name__ == "__main__":
    sys.exit(main())
