"""Does the privacy agent learn? Three seeds, held-out companies, and worlds that training never saw.

    python -m benchmarks.learning [--seeds 0 1 2] [--parallel 1] [--out results/learning] [key=value ...]

For each seed: one training run on the world of that seed with the bundled model, evaluated before and after
on companies without training chains; then the first and the last model on a fresh world. Runs that are
finished are not repeated. Differences are paired by chain, pooled over seeds, with 95 % bootstrap intervals.
`--parallel`: seeds at a time; each keeps two cores busy.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks._figures import RESULTS, command_line, write_json
from benchmarks._runs import Values, evaluations, launch, paired

METRICS = ("success", "success_if_well_formed", "reward", "leak", "well_formed")
SKILLS = ("plan_gold_retrieved", "choose_correct", "read_accuracy", "resolve_accuracy")
FRESH_WORLD = 1000
"""Added to a seed for the world that is never trained on."""


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


def main() -> int:
    options = command_line(__doc__)
    with ThreadPoolExecutor(options.parallel) as pool:
        seeds = list(pool.map(lambda seed: run_seed(seed, options.out, options.overrides), options.seeds))
    result: dict[str, Any] = {"seeds": options.seeds, "overrides": options.overrides}
    for world in ("same world", "fresh world"):
        print(f"\n{world}, {len(seeds)} seeds: before, after, paired difference [95 % interval]")
        for metric in (*METRICS, *SKILLS):
            found = paired([worlds[world] for worlds in seeds], metric)
            names = ("before", "after", "difference")
            result[f"{world}/{metric}"] = {name: one._asdict() for name, one in zip(names, found)}
            before, after, difference = found
            print(
                f"  {metric:<24}{before.mean:>7.3f}{after.mean:>7.3f}  {difference.mean:+.3f} "
                f"[{difference.low:+.3f}, {difference.high:+.3f}]  n={difference.n}"
            )
    write_json(RESULTS / "learning.json", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
