"""Does a critic replace the verifier? More SFT, RARO and verifier RL from one warm checkpoint.

    python -m benchmarks.raro [--game tiny|reference] [--seeds 0 1 2] [--arms sft raro rlvr] [--parallel 1]
                              [--steps 120] [--evaluations 2] [--sft-steps 0] [--out results/raro]
                              [--result FILE] [--small] [key=value ...]

Countdown in miniature on the CPU: `tiny` with two verdicts a pair and weights of 1/2 for both roles,
`reference` with the method's own values, 16 attempts, 16 verdicts, weights 1/9 and 8/9. Every arm sees the
same training questions and the same held-out ones (numbers that neither training nor warm-up saw); the RL
arms have equal policy completions. More SFT, which is cheap, makes `--sft-steps` (0: as many steps). Each run
is evaluated with the exact verifier, `--evaluations` times after the first (SFT: 4 at least, and more often
in proportion to its steps). Runs that are finished are not repeated and interrupted ones go on, so the
same command continues after a break; the table of what is there is written after every run (to `--result`,
or table.json in `--out`), a figure at the end. `--parallel` runs at a time keep about three cores busy each.
`--small` makes a smoke test of it. Other arms: no_replay, no_tie and half (the weights of `tiny`).
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks._figures import RESULTS, command_line
from benchmarks._raro_earned import earned
from benchmarks._raro_figure import draw
from benchmarks._raro_runs import COMPARED, Step, arms_of, read, write
from benchmarks._raro_table import Arm, RunResult, lines, table
from benchmarks._runs import run_to_end
from benchmarks.gpu.runs import launcher

DEADLINE_S = 4 * 3600
ENV = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}
SIZES = {"train": 1500, "val": 100, "test": 1000}
SMALL_SIZES = {"train": 100, "val": 10, "test": 20}


@dataclass(frozen=True)
class Game:
    """How the arms play."""

    arms: dict[str, Arm]
    step: Step
    result: Path
    """Where the table of all three arms is kept."""


GAMES = {
    "tiny": Game(arms_of("raro_tiny"), Step(completions=64, verdicts=2), RESULTS / "raro.json"),
    "reference": Game(
        arms_of("raro"), Step(completions=64, verdicts=16, attempts=16), RESULTS / "raro_reference.json"
    ),
}


@dataclass(frozen=True)
class Plan:
    """What all runs share."""

    game: Game
    out: Path
    steps: int
    evaluations: int
    sizes: dict[str, int]
    overrides: tuple[str, ...]
    sft_steps: int = 0
    """Of the supervised arm; 0: as many as the others."""

    def steps_of(self, arm: Arm) -> int:
        """Optimizer steps of a run of the arm."""
        return self.sft_steps if arm.best_validation and self.sft_steps else self.steps


def command(plan: Plan, name: str, seed: int) -> list[str]:
    """The launcher's command of one run."""
    arm = plan.game.arms[name]
    steps = plan.steps_of(arm)
    least = max(4, plan.evaluations * steps // plan.steps) if arm.best_validation else 0
    evaluations = max(least, plan.evaluations)
    sizes = ", ".join(f"{split}: {size}" for split, size in plan.sizes.items())
    overrides = [
        f"+domain={arm.domain}",
        "hardware=cpu",
        f"seed={seed}",
        f"finetune.max_train_steps={steps}",
        f"eval_every_n_versions={max(1, -(-steps // evaluations)) * plan.game.step.texts(arm)}",
        "test_dataset_names=[val,test]",
        f"raro.data.countdown.sizes={{{sizes}}}",
        *plan.game.step.overrides(arm),
        *arm.overrides,
        *plan.overrides,
    ]
    return launcher(plan.out / f"{name}_{seed}", overrides)


def run(plan: Plan, name: str, seed: int) -> RunResult:
    """One run to its end, or what it left when it was finished earlier. Raises RuntimeError if it fails."""
    out = plan.out / f"{name}_{seed}"
    mark = out / "launcher" / "completed.json"
    arm, step = plan.game.arms[name], plan.game.step
    if not mark.is_file() or int(json.loads(mark.read_text())["steps"]) < plan.steps_of(arm):
        run_to_end(command(plan, name, seed), DEADLINE_S, {**os.environ, **ENV})
    found = read(out, plan.game.arms, name, seed, step, plan.sizes["test"])
    return replace(found, earned=earned(out, plan.steps * step.texts(arm))) if arm.critic_groups else found


def settings(plan: Plan) -> dict[str, Any]:
    """What the table's file says beside the runs."""
    return {
        "steps": plan.steps,
        "SFT steps": plan.sft_steps or plan.steps,
        "policy completions per step": plan.game.step.completions,
        "verdicts": plan.game.step.verdicts,
        "overrides": list(plan.overrides),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, print and write the table; exit status 1 if a run failed."""
    options = command_line(__doc__, argv, arms=GAMES["tiny"].arms)
    game = GAMES[options.game]
    steps = options.steps, options.evaluations
    plan = Plan(game, options.out, *steps, SIZES, tuple(options.overrides), options.sft_steps)
    if options.small:
        plan = replace(plan, steps=3, evaluations=1, sft_steps=0, sizes=SMALL_SIZES)
    results, failed = list[RunResult](), 0
    # The slow runs first, so that they do not end alone.
    order = sorted(options.arms, key=lambda name: -game.step.texts(game.arms[name]))
    with ThreadPoolExecutor(options.parallel) as pool:
        jobs = [pool.submit(run, plan, name, seed) for seed in options.seeds for name in order]
        for job in as_completed(jobs):
            try:
                results.append(job.result())
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"failed: {error}", file=sys.stderr, flush=True)
                continue
            last = results[-1]
            print(f"{last.arm} seed {last.seed}: {last.after['sampled']:.1f} %", flush=True)
            write(options.result or plan.out / "table.json", results, game.arms, settings(plan))
    for line in lines(table(results, game.arms), game.arms):
        print(line)
    draw(results, game.arms, options.out / "curves.png")
    if not options.small and not failed and set(options.arms) >= COMPARED:
        write(game.result, results, game.arms, settings(plan))
        draw(results, game.arms, game.result.with_suffix(".png"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
