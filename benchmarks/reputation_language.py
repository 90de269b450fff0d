"""Does a language model learn to help where helping pays? Share of the margin at one price, held-out seeds.

    python -m benchmarks.reputation_language [--seeds 0 1 2] [--parallel 1] [--price 0.7] [key=value ...]

One run of `+domain=reputation_hacking hardware=cpu` a training seed, from the bundled model. The first model
and the last of each run then play the held-out tapes without engines, most likely answers and drawn ones,
beside the optimum and the ladder on the same tapes. Runs that are finished are not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._runs import launch
from domains.reputation_hacking.dynamics import ACTIONS
from domains.reputation_hacking.language_policy import LanguagePolicy
from domains.reputation_hacking.paired import HELD_OUT
from domains.reputation_hacking.params import Params
from domains.reputation_hacking.policies import play
from domains.reputation_hacking.report import Yardstick

GOAL = 0.25
START = Path(__file__).parent.parent / "domains" / "reputation_hacking" / "checkpoint"
RESULT = Path(__file__).parent / "results" / "reputation_language.json"


def measured(folder: Path, yardstick: Yardstick) -> dict[str, dict[str, Any]]:
    """A checkpoint's rung of the ladder and its actions, deterministic and sampled."""
    torch.set_num_threads(1)
    rungs = {}
    for sampled in (False, True):
        policy = LanguagePolicy(folder, sampled=sampled)
        episodes = play(yardstick.params, yardstick.tapes, policy)
        shares = {name: float(np.mean(episodes.actions == index)) for index, name in enumerate(ACTIONS)}
        rung = yardstick.rung(policy.name, episodes)
        rungs[policy.name] = {**rung, "regret": yardstick.best - rung["J"], "actions": shares}
    return rungs


def line(name: str, rungs: dict[str, dict[str, Any]]) -> str:
    parts = []
    for policy, rung in rungs.items():
        shares = " / ".join(f"{rung['actions'][action]:.2f}" for action in ("HELP", "SIGNAL", "DO_NOTHING"))
        parts.append(f"{policy} {rung['share']:+.2f}  {shares}")
    return f"{name:<10}" + "   ".join(parts)


def main(argv: Sequence[str]) -> int:
    """Run what is missing, print the table, write the JSON; 1 when a seed misses the goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("results/reputation_language"), metavar="DIR")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time; each keeps two cores busy")
    parser.add_argument("--price", type=float, default=0.7, help="of a SIGNAL")
    parser.add_argument("--out", type=Path, default=RESULT, metavar="FILE")
    parser.add_argument("overrides", nargs="*", help="overrides of every run, key=value")
    options = parser.parse_args(argv)
    yardstick = Yardstick(Params(c_signal=options.price), HELD_OUT)
    if yardstick.share(yardstick.best) is None:
        parser.error(f"--price {options.price:g}: the best constant policy is optimal there; try 0.7")

    def run(seed: int) -> Path:
        folder = options.runs / f"seed_{seed}"
        settings = [f"seed={seed}", f"dataset_loader_params.c_signal=[{options.price}]"]
        launch(folder, [*settings, "eval_at_end=false", *options.overrides], "reputation_hacking")
        return folder / "finetune" / "current"

    with ThreadPoolExecutor(options.parallel) as pool:
        folders = list(pool.map(run, options.seeds))
    with ProcessPoolExecutor(options.parallel, mp_context=get_context("spawn")) as processes:
        rungs = processes.map(partial(measured, yardstick=yardstick), [START, *folders])
        rows = dict(zip(["start", *map(str, options.seeds)], rungs, strict=True))
    print(f"share of the margin at c_signal={options.price:g}, n={len(HELD_OUT)}; HELP / SIGNAL / DO_NOTHING")
    for name, rungs in rows.items():
        print(line(name if name == "start" else f"seed {name}", rungs))
    ladder = yardstick.ladder()
    print("ladder: " + ", ".join(f"{rung['policy']} {rung['share']:+.2f}" for rung in ladder))
    result = {"price": options.price, "overrides": options.overrides, "policies": rows, "ladder": ladder}
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    reached = [rows[str(seed)]["deterministic"]["share"] >= GOAL for seed in options.seeds]
    print(f"goal {GOAL} on every seed: {'met' if all(reached) else 'MISSED'}; wrote {options.out}")
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
