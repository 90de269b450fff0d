"""Does a critic replace the verifier? More SFT, RARO and verifier RL from one warm checkpoint.

    python -m benchmarks.raro [--seeds 0 1 2] [--arms sft raro rlvr] [--parallel 1]
                              [--steps 120] [--evaluations 2] [--out results/raro] [--result FILE]
                              [--small] [key=value ...]

Countdown in miniature on the CPU. Every arm sees the same training questions and the same held-out ones
(numbers that neither training nor warm-up saw); the RL arms have equal policy completions. Each run is
evaluated with the exact verifier, `--evaluations` times after the first (SFT: 4 at least). Runs that are
finished are not repeated and interrupted ones go on, so the same command continues after a break; the table
of what is there is written after every run (to `--result`, or table.json in `--out`), a figure at the end.
`--parallel` runs at a time keep about three cores busy each. `--small` makes a smoke test of it.
Other arms: no_replay, no_tie.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks._figures import RESULTS, command_line, write_json
from benchmarks._raro_figure import GAME, draw
from benchmarks._raro_table import Arm, RunResult, lines, table
from benchmarks._runs import run_to_end
from benchmarks.gpu.runs import launcher
from pipelinerl.observe.history import Series, read_metrics, series

COMPLETIONS_PER_STEP = 64
DEADLINE_S = 4 * 3600
RESULT = RESULTS / "raro.json"
METRICS = {"sampled": "raro/eval_accuracy", "greedy": "raro/eval_accuracy_greedy"}
ENV = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}
ARMS: dict[str, Arm] = {
    "sft": Arm("more SFT", "raro_sft", best_validation=True),
    "raro": Arm("RARO", "raro_tiny"),
    "rlvr": Arm("verifier RL", "raro_rlvr"),
    "no_replay": Arm("RARO without replay", "raro_tiny", ("raro.replay.fraction=0",)),
    "no_tie": Arm("RARO without ties", "raro_tiny", ("raro.allow_tie=false",)),
}
COMPARED = {"sft", "raro", "rlvr"}
"""Arms that a table must have to be kept as the last complete one."""
SIZES = {"train": 1500, "val": 100, "test": 1000}
SMALL_SIZES = {"train": 100, "val": 10, "test": 20}


@dataclass(frozen=True)
class Plan:
    """What all runs share."""

    out: Path
    steps: int
    evaluations: int
    sizes: dict[str, int]
    overrides: tuple[str, ...]


def texts_per_step(name: str) -> int:
    """Texts that 64 policy completions bring: with G = 2 one, three or five each."""
    if ARMS[name].domain != "raro_tiny":
        return COMPLETIONS_PER_STEP
    return COMPLETIONS_PER_STEP * (3 if name == "no_replay" else 5)


def command(plan: Plan, name: str, seed: int) -> list[str]:
    """The launcher's command of one run."""
    arm, texts = ARMS[name], texts_per_step(name)
    evaluations = max(4, plan.evaluations) if arm.best_validation else plan.evaluations
    sizes = ", ".join(f"{split}: {size}" for split, size in plan.sizes.items())
    overrides = [
        f"+domain={arm.domain}",
        "hardware=cpu",
        f"seed={seed}",
        f"finetune.max_train_steps={plan.steps}",
        f"finetune.gradient_accumulation_passes={texts}",
        f"eval_every_n_versions={max(1, -(-plan.steps // evaluations)) * texts}",
        "test_dataset_names=[val,test]",
        f"raro.data.countdown.sizes={{{sizes}}}",
        *arm.overrides,
        *plan.overrides,
    ]
    return launcher(plan.out / f"{name}_{seed}", overrides)


def run(plan: Plan, name: str, seed: int) -> RunResult:
    """One run to its end, or what it left when it was finished earlier. Raises RuntimeError if it fails."""
    out = plan.out / f"{name}_{seed}"
    mark = out / "launcher" / "completed.json"
    if not mark.is_file() or int(json.loads(mark.read_text())["steps"]) < plan.steps:
        run_to_end(command(plan, name, seed), DEADLINE_S, {**os.environ, **ENV})
    return read(plan, name, seed)


def read(plan: Plan, name: str, seed: int) -> RunResult:
    """Accuracies before and after, and what the run cost, from the metrics of a finished run.

    Metrics outlive an interruption; a version that was evaluated twice counts once, the later.
    """
    out = plan.out / f"{name}_{seed}"
    actor, finetune = read_metrics(out, "actor"), read_metrics(out, "finetune")
    curves = {way: series(actor, f"actor/test/{metric}_mean") for way, metric in METRICS.items()}
    chosen = len(curves["greedy"]) - 1
    if ARMS[name].best_validation:
        chosen = int(np.argmax(series(actor, f"actor/val/{METRICS['greedy']}_mean").y))
    tokens = series(finetune, "stats/tokens")
    game = GAME if ARMS[name].domain == "raro_tiny" else {}
    return RunResult(
        arm=name,
        seed=seed,
        before={way: 100 * float(curve.y[0]) for way, curve in curves.items()},
        after={way: 100 * float(curve.y[chosen]) for way, curve in curves.items()},
        curve=by_completions(name, curves["sampled"], 100.0),
        questions=plan.sizes["test"],
        trained_tokens=float(tokens.y[-1]) if len(tokens) else 0.0,
        completions=sum(float(record.get("actor/rollouts_done", 0.0)) for record in actor),
        seconds=actor[-1]["time"] - actor[0]["time"],
        game={t: by_completions(name, series(actor, f"actor/{metric}_mean")) for t, metric in game.items()},
    )


def by_completions(name: str, curve: Series, scale: float = 1.0) -> dict[str, float]:
    """A curve over trained texts as one over policy completions."""
    each = COMPLETIONS_PER_STEP / texts_per_step(name)
    return {f"{x * each:.0f}": round(scale * float(y), 4) for x, y in zip(curve.x, curve.y)}


def write(path: Path, results: Sequence[RunResult], plan: Plan) -> None:
    """The table and every run's numbers, the same whatever the order in which the runs ended."""
    results = sorted(results, key=lambda run: (run.arm, run.seed))
    content = {
        "steps": plan.steps,
        "policy completions per step": COMPLETIONS_PER_STEP,
        "overrides": list(plan.overrides),
        "table": table(results, ARMS),
        "runs": [vars(result) for result in results],
    }
    write_json(path, content)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, print and write the table; exit status 1 if a run failed."""
    options = command_line(__doc__, argv, arms=ARMS)
    plan = Plan(options.out, options.steps, options.evaluations, SIZES, tuple(options.overrides))
    if options.small:
        plan = replace(plan, steps=3, evaluations=1, sizes=SMALL_SIZES)
    results, failed = list[RunResult](), 0
    # The slow runs first, so that they do not end alone.
    order = sorted(options.arms, key=lambda name: -texts_per_step(name))
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
            write(options.result or plan.out / "table.json", results, plan)
    for line in lines(table(results, ARMS), ARMS):
        print(line)
    draw(results, ARMS, options.out / "curves.png")
    if not options.small and not failed and set(options.arms) >= COMPARED:
        write(RESULT, results, plan)
        draw(results, ARMS, RESULT.with_suffix(".png"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
