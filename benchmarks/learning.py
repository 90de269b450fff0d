"""Does the privacy agent learn? Three seeds, held-out companies, and worlds that training never saw.

    python -m benchmarks.learning [--seeds 0 1 2] [--parallel 1] [--out results/learning] [key=value ...]

For each seed: one training run on the world of that seed with the bundled model, evaluated before and after
on companies without training chains; then the first and the last model on a fresh world. Runs that are
finished are not repeated. Differences are paired by chain, pooled over seeds, with 95 % bootstrap intervals.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks._runs import Values, evaluations, launch, paired

METRICS = ("success", "success_if_well_formed", "reward", "leak", "well_formed")
SKILLS = ("plan_gold_retrieved", "choose_correct", "read_accuracy", "resolve_accuracy")
FRESH_WORLD = 1000
"""Added to a seed for the world that is never trained on."""
RESULT = Path(__file__).parent / "results" / "learning.json"


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
        fresh.append(evaluations(out)[0][1])
    same = evaluations(run)
    return {"same world": (same[0][1], same[-1][1]), "fresh world": (fresh[0], fresh[1])}


def main(argv: Sequence[str]) -> int:
    """Run what is missing, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("results/learning"))
    parser.add_argument("--parallel", type=int, default=1, help="seeds at a time; each keeps two cores busy")
    parser.add_argument("overrides", nargs="*", help="overrides of every run, key=value")
    options = parser.parse_args(argv)
    with ThreadPoolExecutor(options.parallel) as pool:
        found = pool.map(lambda seed: run_seed(seed, options.out, options.overrides), options.seeds)
        seeds = dict(zip(options.seeds, found, strict=True))
    result: dict[str, Any] = {"seeds": options.seeds, "overrides": options.overrides}
    for world in ("same world", "fresh world"):
        pairs = [worlds[world] for worlds in seeds.values()]
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
