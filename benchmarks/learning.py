"""Does the privacy agent learn? Three seeds, held-out companies, and worlds that training never saw.

    python -m benchmarks.learning [--seeds 0 1 2] [--out results/learning] [key=value ...]

For each seed: one training run on the world of that seed with the bundled model, evaluated before and after
on companies without training chains; then the first and the last model on a fresh world. Runs that are
finished are not repeated. Differences are paired by chain, pooled over seeds, with 95 % bootstrap intervals.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipelinerl.observe.intervals import Interval, bootstrap
from pipelinerl.streams import SingleStreamSpec, read_stream

METRICS = ("success", "success_if_well_formed", "reward", "leak", "well_formed")
SKILLS = ("plan_gold_retrieved", "choose_correct", "read_accuracy", "resolve_accuracy")
FRESH_WORLD = 1000
"""Added to a seed for the world that is never trained on."""
RESULT = Path(__file__).parent / "results" / "learning.json"
DEADLINE_S = 3600

Values = dict[str, list[float | None]]


def launch(out: Path, overrides: Sequence[str]) -> None:
    """One run to its end; a finished one is left alone. Raises RuntimeError with the launcher's last line."""
    if (out / "launcher" / "completed.json").is_file():
        return
    command = [sys.executable, "-m", "pipelinerl.launch", "+domain=privacy_hopqa", "hardware=cpu"]
    command += [f"output_dir={out}", "wandb.use_wandb=false", *overrides]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise RuntimeError(f"{out}: exit {done.returncode}: {lines[-1]}")


def evaluations(out: Path) -> list[Values]:
    """Values per held-out chain of each evaluation of a run, in order."""
    with read_stream(SingleStreamSpec(out, "stats_test")) as reader:
        return [record["values"] for record in reader.read_available()]


def run_seed(seed: int, root: Path, extra: Sequence[str]) -> dict[str, tuple[Values, Values]]:
    """(before, after) on the world of the seed and on a fresh one."""
    run = root / f"seed_{seed}"
    launch(run, [f"seed={seed}", f"privacy_hopqa.world.seed={seed}", *extra])
    fresh = []
    for name, model in (("first", None), ("last", run / "finetune" / "current")):
        out = root / f"seed_{seed}_fresh_{name}"
        options = [f"seed={seed}", f"privacy_hopqa.world.seed={FRESH_WORLD + seed}"]
        options += ["finetune.max_train_steps=1", "eval_at_end=false"]
        launch(out, [*extra, *options, *([f"model_path={model}"] if model else [])])
        fresh.append(evaluations(out)[0])
    same = evaluations(run)
    return {"same world": (same[0], same[-1]), "fresh world": (fresh[0], fresh[1])}


def paired(pairs: Sequence[tuple[Values, Values]], metric: str) -> tuple[Interval, Interval, Interval]:
    """Before, after and difference over the chains of all seeds that have both values."""
    columns = [
        (b, a)
        for before, after in pairs
        for b, a in zip(before.get(metric, []), after.get(metric, []))
        if b is not None and a is not None
    ]
    table = np.array(columns, np.float64)
    return bootstrap(table[:, 0]), bootstrap(table[:, 1]), bootstrap(table[:, 1] - table[:, 0])


def main(argv: Sequence[str]) -> int:
    """Run what is missing, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("results/learning"))
    parser.add_argument("overrides", nargs="*", help="overrides of every run, key=value")
    options = parser.parse_args(argv)
    seeds = {seed: run_seed(seed, options.out, options.overrides) for seed in options.seeds}
    result: dict[str, Any] = {"seeds": options.seeds, "overrides": options.overrides}
    for world in ("same world", "fresh world"):
        pairs = [found[world] for found in seeds.values()]
        print(f"\n{world}, {len(seeds)} seeds: before, after, paired difference [95 % interval]")
        for metric in (*METRICS, *SKILLS):
            before, after, difference = paired(pairs, metric)
            result[f"{world}/{metric}"] = {
                "before": before._asdict(),
                "after": after._asdict(),
                "difference": difference._asdict(),
            }
            print(
                f"  {metric:<24}{before.mean:>7.3f}{after.mean:>7.3f}  {difference.mean:+.3f} "
                f"[{difference.low:+.3f}, {difference.high:+.3f}]  n={difference.n}"
            )
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
