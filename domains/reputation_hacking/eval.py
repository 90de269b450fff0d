"""Evaluate an Assistant on paired noise: `python -m domains.reputation_hacking.eval --quick --out DIR`."""

import argparse
import csv
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from domains.reputation_hacking.game import console
from domains.reputation_hacking.game.dynamic_programming import Optimal, solve
from domains.reputation_hacking.game.mitigations import Mitigation, initial_effort
from domains.reputation_hacking.game.params import PRESETS, Params, parse_setting, preset
from domains.reputation_hacking.game.policies import SCRIPTED, Policy, Stochastic, fitted_rule
from domains.reputation_hacking.game.terminal import terminal_info
from domains.reputation_hacking.ppo.paired import MODES, QUICK_SEEDS, Paired, held_out
from domains.reputation_hacking.ppo.report import columns, evaluate, screen
from pipelinerl.base.errors import CommandParser, leave

BURN_IN = 30


def arguments() -> argparse.ArgumentParser:
    parser = CommandParser(prog="python -m domains.reputation_hacking.eval", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds")
    add("--out", type=Path, default=console.DEFAULT_OUT, metavar="DIR")
    add("--model", type=Path, metavar="ZIP", help=f"default: {console.MODEL_FILE} in --out")
    add("--policy", metavar="NAME", help="a scripted policy, cem or optimum instead of a model")
    add("--language-model", type=Path, metavar="DIR", help="a checkpoint of a small language model")
    add("--preset", choices=sorted(PRESETS), help="parameters of the game, unless a --model holds its own")
    add("--c-signal", type=float, metavar="F", help="price of a SIGNAL, likewise")
    add("--set", action="append", default=[], metavar="param=value", help="any parameter, likewise")
    add("--seeds", type=console.seed_list, metavar="10000:11000")
    add("--mode", choices=MODES, default="calibrated", help="memory of the Workers (from_zero: chained)")
    add("--burn-in", type=int, metavar="N", help=f"chained pairs that do not count ({BURN_IN})")
    add("--allow-transient", action="store_true", help="accept a shorter burn-in")
    add("--l0", type=float, metavar="F", help="effort that Workers expect at first")
    add("--summary", type=Path, metavar="FILE", help="write the report as JSON")
    add("--per-seed", type=Path, metavar="FILE", help="write every seed's numbers as CSV")
    console.add_trace_options(parser)
    return parser


def subjects(options: argparse.Namespace) -> tuple[Params, Mitigation, float, dict[str, Policy]]:
    """(params, reward variant, L at the start, policies by name). Raises ValueError."""
    if options.policy is None and options.language_model is None:
        return saved_model(options)
    params, start = named_game(options)
    if options.language_model is not None:
        from domains.reputation_hacking.language.policy import LanguagePolicy

        return params, Mitigation(), start, both_ways(partial(LanguagePolicy, options.language_model))
    return params, Mitigation(), start, {options.policy: named_policy(options.policy, params)}


def named_game(options: argparse.Namespace) -> tuple[Params, float]:
    """(params, L at the start) of the command line. Raises ValueError."""
    changes: dict[str, Any] = dict(parse_setting(text) for text in options.set)
    if options.c_signal is not None:
        changes["c_signal"] = options.c_signal
    params = preset(options.preset or "default", **changes)
    return params, options.l0 if options.l0 is not None else initial_effort(params)


def saved_model(options: argparse.Namespace) -> tuple[Params, Mitigation, float, dict[str, Policy]]:
    """The game that a model holds or else the command line names, and its two policies. Raises ValueError."""
    from domains.reputation_hacking.ppo.models import ModelPolicy, holds_game, load_model, model_params

    path = options.model or options.out / console.MODEL_FILE
    model = load_model(path)
    policies = both_ways(partial(ModelPolicy, model))
    if not (options.set or options.c_signal is not None or options.preset is not None):
        return *model_params(model, path, options.l0), policies
    if holds_game(model):
        raise ValueError(
            f"{path}: the model is evaluated in the game that it was trained in and holds; "
            "leave --preset, --set and --c-signal out"
        )
    params, start = named_game(options)
    return params, Mitigation(), start, policies


def named_policy(name: str, params: Params) -> Policy:
    """A policy by the name of a command line: scripted, `cem` or `optimum`. Raises ValueError."""
    if name == "cem":
        return fitted_rule(params)
    if name == "optimum":
        return Optimal(solve(params))
    if name not in SCRIPTED:
        raise ValueError(f"policy {name!r}: choose one of {', '.join([*SCRIPTED, 'cem', 'optimum'])}")
    return SCRIPTED[name]


def both_ways(policy: Callable[..., Stochastic]) -> dict[str, Policy]:
    """A model's likeliest actions, and actions drawn from it."""
    policies = [policy(sampled=sampled) for sampled in (False, True)]
    return {policy.name: policy for policy in policies}


def execute(options: argparse.Namespace) -> None:
    """Evaluate, print and draw. Raises ValueError for anything that a person can mend."""
    from domains.reputation_hacking.game.tracing import Tracer
    from domains.reputation_hacking.ppo.plots import draw_evaluation, draw_training

    if options.mode == "from_zero" and (options.burn_in or options.l0):
        raise ValueError("--mode from_zero starts at 0 and counts every pair; leave --l0 and --burn-in out")
    params, mitigation, start, policies = subjects(options)
    seeds = options.seeds if options.seeds is not None else held_out(options.quick)
    out = console.output_folder(options.out)
    with console.progress() as bar:
        task = bar.add_task("evaluating", total=None)
        report, results = evaluate(
            params,
            policies,
            seeds,
            start,
            mitigation=mitigation,
            mode=options.mode,
            burn_in=BURN_IN if options.burn_in is None else options.burn_in,
            allow_transient=options.allow_transient,
        )
        bar.update(task, total=1, completed=1)
    print(screen(report))
    trace_limit = 0.0 if options.no_trace else options.trace_max_mb
    with Tracer(out / console.TRACE_FILE, trace_limit, append=True) as tracer:
        tracer.meta(run="eval", mode=options.mode, params=params.to_json())
        trace(tracer, results, options.trace_envs)
    draw_evaluation(out / console.PLOTS_FOLDER, results, params, str(mitigation))
    draw_training(out / console.METRICS_FILE, out / console.PLOTS_FOLDER, params.c_signal)
    if options.summary is not None:
        options.summary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.per_seed is not None:
        write_per_seed(options.per_seed, {name: columns(result) for name, result in results.items()})
    print(f"figures in {out / console.PLOTS_FOLDER}")


def trace(tracer: Any, results: dict[str, Paired], count: int) -> None:
    """The first seeds, as the policy played them and without it."""
    for name, result in results.items():
        for arm_name, arm in (("with", result.acting), ("without", result.without)):
            info = terminal_info(arm.episodes, arm.settlement)
            for index in range(min(count, len(result.seeds))):
                tracer.episode(arm.episodes, info, index, index, phase="eval", policy=name, arm=arm_name)


def write_per_seed(path: Path, tables: dict[str, dict[str, np.ndarray]]) -> None:
    """One CSV row per policy and seed."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["policy", *next(iter(tables.values()))])
        for policy, table in tables.items():
            cells = zip(*(values.tolist() for values in table.values()), strict=True)
            rows.writerows([policy, *row] for row in cells)


main = console.command("eval", arguments, execute)

if __name__ == "__main__":
    leave("eval", main)
