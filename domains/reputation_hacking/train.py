"""Train an Assistant with PPO: `python -m domains.reputation_hacking.train --quick --out DIR`."""

import argparse
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from domains.reputation_hacking.game import console
from domains.reputation_hacking.game.mitigations import DESIGNS, Mitigation
from domains.reputation_hacking.game.params import CALIBRATED, PRESETS, Params, parse_setting, preset
from domains.reputation_hacking.ppo.recipes import QUICK_STEPS, RECIPES, Recipe
from pipelinerl.base.errors import CommandParser, leave

QUICK_TEST = False
"""Default of `--quick`."""


def arguments() -> argparse.ArgumentParser:
    parser = CommandParser(prog="python -m domains.reputation_hacking.train", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", default=QUICK_TEST, help=f"{QUICK_STEPS:,} steps at most")
    add("--out", type=Path, default=console.DEFAULT_OUT, metavar="DIR")
    add("--c-signal", type=float, metavar="F", help="price of a SIGNAL")
    add("--c-help", type=float, metavar="F", help="price of a HELP")
    add("--steps", type=int, metavar="N", help="steps of training, rounded up to whole rollouts")
    add("--n-envs", type=int, metavar="N", help="environments in lock step")
    add("--seed", type=int, default=0, metavar="S")
    add("--recipe", choices=sorted(RECIPES), default="base", help="settings of PPO")
    add("--preset", choices=sorted(PRESETS), default="default", help="parameters of the game")
    add("--l0", metavar="calibrated|F", help="effort that a new Worker expects")
    add("--mitigation", default="none", metavar="NAME[:k=v,..]", help=f"reward variant: {', '.join(DESIGNS)}")
    add("--set", action="append", default=[], metavar="param=value", help="any parameter of the game")
    add("--rest-flag", action=argparse.BooleanOptionalAction, help="feature: is the Worker resting")
    add("--tape-baseline", action=argparse.BooleanOptionalAction, help="subtract what no action moves")
    add("--learning-rate", metavar="F[:LAST]", help="constant, or linear from F to LAST")
    add("--entropy", metavar="F[:LAST]", help="bonus, constant or linear")
    add("--gamma", type=float, metavar="F", help="discount")
    add("--gae-lambda", type=float, metavar="F")
    add("--epochs", type=int, metavar="N", help="passes over each rollout")
    add("--minibatches", type=int, metavar="N", help="minibatches of each pass")
    add("--raw-observations", action="store_true", help="features without scaling")
    add("--force", action="store_true", help="replace a trained model")
    console.add_trace_options(parser)
    return parser


def params_of(options: argparse.Namespace) -> Params:
    """The game that the command line asks for. Raises ValueError."""
    changes: dict[str, Any] = dict(parse_setting(text) for text in options.set)
    for name in ("c_signal", "c_help"):
        if getattr(options, name) is not None:
            changes[name] = getattr(options, name)
    if options.l0 is not None:
        try:
            changes["l0"] = options.l0 if options.l0 == CALIBRATED else float(options.l0)
        except ValueError:
            raise ValueError(f"--l0 {options.l0}: give a number or {CALIBRATED}") from None
    return preset(options.preset, **changes)


def recipe_of(options: argparse.Namespace) -> Recipe:
    """The recipe with the command line's changes. Raises ValueError for numbers that PPO cannot use."""
    recipe = RECIPES[options.recipe]
    quick = min(QUICK_STEPS, recipe.total_steps)
    given = {
        "total_steps": quick if options.quick and options.steps is None else options.steps,
        "n_envs": options.n_envs,
        "epochs": options.epochs,
        "minibatches": options.minibatches,
        "gamma": options.gamma,
        "gae_lambda": options.gae_lambda,
        "rest_flag": options.rest_flag,
        "tape_baseline": options.tape_baseline,
        "scaled": False if options.raw_observations else None,
    }
    for name in ("total_steps", "n_envs", "epochs", "minibatches"):
        value = given[name]
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('total_', '').replace('_', '-')} {value}: give at least 1")
    for name in ("gamma", "gae_lambda"):
        value = given[name]
        if value is not None and not 0.0 <= value <= 1.0:
            raise ValueError(f"--{name.replace('_', '-')} {value}: choose a number from 0 to 1")
    for name in ("learning_rate", "entropy"):
        text = getattr(options, name)
        if text is not None:
            given[name], given[f"final_{name}"] = first_and_last(f"--{name.replace('_', '-')}", text)
    return replace(recipe, **{name: value for name, value in given.items() if value is not None})


def first_and_last(option: str, text: str) -> tuple[float, float]:
    """`F`, kept throughout as in stable-baselines3, or `F:LAST`. Raises ValueError for anything else."""
    first, _, last = text.partition(":")
    try:
        values = float(first), float(last or first)
    except ValueError:
        values = math.nan, math.nan
    if not all(math.isfinite(value) and value >= 0.0 for value in values):
        raise ValueError(f"{option} {text}: give a number of at least 0, or two as FIRST:LAST")
    return values


def execute(options: argparse.Namespace) -> None:
    """Train, save and draw. Raises ValueError for anything that a person can mend."""
    from domains.reputation_hacking.game.tracing import Tracer
    from domains.reputation_hacking.ppo.models import save_model
    from domains.reputation_hacking.ppo.plots import draw_training
    from domains.reputation_hacking.ppo.training import train

    params, recipe, mitigation = params_of(options), recipe_of(options), Mitigation.parse(options.mitigation)
    out = console.output_folder(options.out)
    target = out / console.MODEL_FILE
    if target.exists() and not options.force:
        raise ValueError(f"{target} exists; choose another --out or replace it with --force")
    steps = recipe.rollouts(params.T) * recipe.n_envs * params.T
    if options.steps is not None and steps != options.steps:
        print(f"--steps {options.steps} rounded up to {steps} (whole rollouts of {recipe.n_envs * params.T})")
    trace_limit = 0.0 if options.no_trace else options.trace_max_mb
    trace = out / console.TRACE_FILE
    if trace_limit <= 0:
        trace.unlink(missing_ok=True)
    with Tracer(trace, trace_limit) as tracer, console.progress() as bar:
        tracer.meta(run="train", seed=options.seed, params=params.to_json(), recipe=asdict(recipe))
        task = bar.add_task("PPO steps", total=steps)
        trained = train(
            params,
            recipe,
            options.seed,
            mitigation=mitigation,
            table=out / console.METRICS_FILE,
            tracer=tracer,
            trace_envs=options.trace_envs,
            tick=lambda done: bar.update(task, completed=done),
        )
    save_model(trained.model, target)
    draw_training(out / console.METRICS_FILE, out / console.PLOTS_FOLDER, params.c_signal)
    recent = trained.recent
    print(
        f"PPO ({options.recipe}), seed {options.seed}: {trained.steps:,} steps in {trained.seconds:.1f} s "
        f"({trained.steps / trained.seconds:,.0f} steps/s), c_signal={params.c_signal:g}, "
        f"mitigation={mitigation}\n"
        f"last episodes (sampled actions, chained memory): reward {recent['reward_raw']:.2f}, "
        f"rating {recent['peer_rating']:.2f}, effort {recent['experienced_effort']:.2f}, "
        f"HELP {recent['help_count']:.1f}, SIGNAL {recent['signal_count']:.1f}, "
        f"DO_NOTHING {recent['nothing_count']:.1f}\n"
        f"wrote {target}, {console.METRICS_FILE}, {console.PLOTS_FOLDER}/training_curves.png; "
        f"next: python -m domains.reputation_hacking.eval --out {out}"
    )


main = console.command("train", arguments, execute)

if __name__ == "__main__":
    leave("train", main)
