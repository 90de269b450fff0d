"""The privacy agent under different rewards, from the same start: a table, curves, and which gates hold.

    python -m benchmarks.arms [--arms outcome situational penalty] [--seeds 0 1 2] [--steps 80]
                              [--batch 64] [--chains 344] [--patterns LWLW ...] [--evaluations 7]
                              [--parallel 1] [--out results/arms] [key=value ...]

`outcome` gives every plan and choice the reward of the whole rollout and compares whole rollouts;
`situational` rewards each decision and compares it with decisions of the same situation; `penalty` also
takes off what a plan's queries leak. All start from the bundled model, train on equally many texts and are
evaluated on the same `--chains` held-out chains per seed, before, on the way and after. Finished runs are
not repeated, so the command can be stopped and started again; `--report` starts nothing and reports what runs
that are not at their end have in common: evaluations up to the fewest texts that a run was last evaluated at.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks._runs import Values, evaluations, launch, paired
from pipelinerl.observe.intervals import Interval, bootstrap, known
from pipelinerl.observe.plots import COLOURS, DASHES, MARKERS

DECISIONS = (
    "privacy_hopqa.capture_mode=planning_only",
    "privacy_hopqa.anchor_stages=false",
    "finetune.rl.role_weights=null",
)
SITUATIONAL = (*DECISIONS, "privacy_hopqa.training_reward_mode=hop_step_situational")
ARMS: Mapping[str, Sequence[str]] = {
    "outcome": (
        *DECISIONS,
        "privacy_hopqa.training_reward_mode=outcome",
        "privacy_hopqa.privacy_reward_weight=0",
        "finetune.rl.step_reward_advantages=false",
    ),
    "situational": (*SITUATIONAL, "privacy_hopqa.privacy_reward_weight=0"),
    "penalty": (*SITUATIONAL, "privacy_hopqa.privacy_reward_weight=1"),
}
METRICS = ("success", "leak", "success_if_well_formed", "plan_gold_retrieved", "choose_correct")
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Run:
    """One arm with one seed: trained texts and values per held-out chain of each evaluation."""

    texts: list[int]
    values: list[Values]

    def curve(self, metric: str) -> list[float]:
        """Mean over the chains at each evaluation."""
        return [float(known(values[metric]).mean()) for values in self.values]

    def until(self, texts: int) -> Run:
        """Only the evaluations of models trained on at most so many texts."""
        kept = [i for i, n in enumerate(self.texts) if n <= texts]
        return Run([self.texts[i] for i in kept], [self.values[i] for i in kept])

    def curves(self) -> dict[str, list[float]]:
        """Every metric's curve, and where its points lie."""
        return {"texts": [float(n) for n in self.texts], **{m: self.curve(m) for m in METRICS}}

    def texts_to(self, target: float) -> float:
        """Trained texts until success first reaches `target`, interpolated; inf if it never does."""
        success = self.curve("success")
        for i, reached in enumerate(success):
            if reached >= target:
                if i == 0:
                    return float(self.texts[0])
                share = (target - success[i - 1]) / (reached - success[i - 1])
                return self.texts[i - 1] + share * (self.texts[i] - self.texts[i - 1])
        return float("inf")


def world(seed: int, chains: int, patterns: Sequence[str]) -> str:
    """The override for a world with many held-out chains, about six companies that are never trained on.

    `patterns`: hop patterns, one `L` (private) or `W` (web) per hop, equally often; none: the world's own.
    """
    counts = "companies:4,test_companies:6,private_docs:40,web_docs:1200,train_chains:192,val_chains:8"
    weights = ",".join(f"{pattern}:1" for pattern in patterns)
    mixture = f",patterns:{{{weights}}}" if patterns else ""
    return f"privacy_hopqa.world={{seed:{seed},size:custom,{counts},test_chains:{chains}{mixture}}}"


def run_arm(arm: str, seed: int, options: argparse.Namespace) -> Run:
    """Train and evaluate one arm with one seed, unless that was done before."""
    out = options.out / f"{arm}_{seed}"
    if not options.report:
        _train(out, arm, seed, options)
    found = evaluations(out)
    return Run([version for version, _ in found], [values for _, values in found])


def _train(out: Path, arm: str, seed: int, options: argparse.Namespace) -> None:
    every = max(1, options.steps // (options.evaluations + 1)) * options.batch
    launch(
        out,
        [
            f"seed={seed}",
            world(seed, options.chains, options.patterns),
            f"finetune.gradient_accumulation_passes={options.batch}",
            f"finetune.max_train_steps={options.steps}",
            f"eval_every_n_versions={every}",
            *ARMS[arm],
            *options.overrides,
        ],
    )


Runs = Mapping[str, Mapping[int, Run]]


def last(runs: Runs, arm: str) -> list[Values]:
    """The final evaluation of each seed."""
    return [run.values[-1] for run in runs[arm].values()]


def first(runs: Runs, arm: str) -> list[Values]:
    """The evaluation before training of each seed."""
    return [run.values[0] for run in runs[arm].values()]


def against(runs: Runs, arm: str, other: str | None, metric: str) -> tuple[Interval, str]:
    """Difference of the final models, arm minus other (None: its own start), paired by chain; and in words.

    The words hold each seed's difference, too: an interval over pooled chains does not show how much runs
    differ.
    """
    before = first(runs, arm) if other is None else last(runs, other)
    pairs = list(zip(before, last(runs, arm), strict=True))
    interval = paired(pairs, metric)[2]
    seeds = ", ".join(f"{paired([pair], metric)[2].mean:+.3f}" for pair in pairs)
    return interval, f"{text(interval)}, by seed {seeds}"


def gates(runs: Runs) -> dict[str, tuple[bool, str]]:
    """The orders that the arms are to show: whether each holds, and the figures that decide it."""
    found: dict[str, tuple[bool, str]] = {}
    if "outcome" in runs:
        change, shown = against(runs, "outcome", None, "success")
        found["O1 outcome raises success"] = change.low > 0, shown
        change, shown = against(runs, "outcome", None, "leak")
        found["O2 outcome raises leakage"] = change.low > 0, shown
    if {"outcome", "situational"} <= runs.keys():
        shares = []
        for seed, run in runs["outcome"].items():
            target = run.curve("success")[-1]
            shares.append(share_of(runs["situational"][seed].texts_to(target), run.texts_to(target)))
        shown = "share of the texts per seed: " + ", ".join(f"{share:.2f}" for share in shares)
        found["O3 situational needs fewer texts, every seed"] = max(shares) < 1, shown
        found["O3 goal: a third of the texts"] = float(np.mean(shares)) <= 1 / 3, shown
    if "penalty" in runs:
        change, shown = against(runs, "penalty", None, "leak")
        found["O4 penalty lowers leakage"] = change.high < 0, shown
        rates = [mean_of(when(runs, "penalty"), "leak") for when in (first, last)]
        found["O4 goal: a third of the base"] = rates[1] <= rates[0] / 3, f"{rates[0]:.3f} -> {rates[1]:.3f}"
        change, shown = against(runs, "penalty", None, "success")
        found["O5 penalty raises success"] = change.low > 0, shown
    if {"penalty", "situational"} <= runs.keys():
        cost, shown = against(runs, "penalty", "situational", "success")
        found["O5 at most 3 points below situational"] = cost.mean >= -0.03, shown
        best = max((a for a in runs if a != "penalty"), key=lambda arm: mean_of(last(runs, arm), "success"))
        cost, shown = against(runs, "penalty", best, "success")
        found[f"O5 goal: not 5 points below {best}"] = cost.low > -0.05, shown
    return found


def share_of(texts: float, of: float) -> float:
    """`texts / of`; inf where training gained nothing (`of` is 0): there is nothing to be faster at."""
    return texts / of if of > 0 else float("inf")


def mean_of(evaluations: Sequence[Values], metric: str) -> float:
    """Mean over the chains of all seeds."""
    return float(np.concatenate([known(values[metric]) for values in evaluations]).mean())


def text(interval: Interval) -> str:
    """Mean and 95 % interval."""
    return f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}] n={interval.n}"


def table(runs: Runs) -> dict[str, dict[str, Any]]:
    """Print and return the means with intervals of the start and of every arm's last model."""
    rows: dict[str, dict[str, Any]] = {}
    any_arm = next(iter(runs))
    print(f"{'':<14}" + "".join(f"{metric:>26}" for metric in METRICS))
    for name, values in [("start", first(runs, any_arm)), *((arm, last(runs, arm)) for arm in runs)]:
        cells = {}
        for metric in METRICS:
            cells[metric] = bootstrap(np.concatenate([known(v[metric]) for v in values]))
        rows[name] = {metric: cell._asdict() for metric, cell in cells.items()}
        shown = (f"{c.mean:.3f} [{c.low:.3f}, {c.high:.3f}]" for c in cells.values())
        print(f"{name:<14}" + "".join(f"{cell:>26}" for cell in shown))
    return rows


def draw(runs: Runs, path: Path) -> None:
    """Success and leakage on held-out chains over trained texts: a line per arm, a thin one per seed."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharex=True)
    for axis, metric in zip(axes, ("success", "leak"), strict=True):
        for index, (arm, seeds) in enumerate(runs.items()):
            style: dict[str, Any] = {"color": COLOURS[index], "linestyle": DASHES[index]}
            for run in seeds.values():
                axis.plot(run.texts, run.curve(metric), alpha=0.3, linewidth=0.8, **style)
            texts = np.linspace(0, min(run.texts[-1] for run in seeds.values()), 8)
            mean = np.mean([np.interp(texts, run.texts, run.curve(metric)) for run in seeds.values()], axis=0)
            axis.plot(texts, mean, marker=MARKERS[index], label=arm, linewidth=2, **style)
        axis.set(xlabel="texts trained on", ylabel=f"{metric}, held-out chains", ylim=(0, 1))
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)


def collect(options: argparse.Namespace) -> Runs:
    """All runs, `options.parallel` at a time."""
    pairs = [(arm, seed) for seed in options.seeds for arm in options.arms]
    with ThreadPoolExecutor(options.parallel) as pool:
        made = list(pool.map(lambda pair: run_arm(pair[0], pair[1], options), pairs))
    runs: dict[str, dict[int, Run]] = {arm: {} for arm in options.arms}
    for (arm, seed), result in zip(pairs, made, strict=True):
        if not result.texts:
            raise SystemExit(f"{options.out / f'{arm}_{seed}'}: no evaluation yet; leave the run out or wait")
    budget = min(run.texts[-1] for run in made)
    for (arm, seed), result in zip(pairs, made, strict=True):
        runs[arm][seed] = result.until(budget + options.batch)
    return runs


def main(argv: Sequence[str]) -> int:
    """Run what is missing, print the table and the gates, write JSON and figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=80, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=64, help="texts of a step")
    parser.add_argument(
        "--evaluations", type=int, default=7, help="on the way from the first to the last model"
    )
    parser.add_argument("--chains", type=int, default=344, help="held-out chains per seed")
    parser.add_argument(
        "--patterns", nargs="*", default=[], help="hop patterns such as LWLW; none: the world's"
    )
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time; each keeps two cores busy")
    parser.add_argument("--out", type=Path, default=Path("results/arms"))
    parser.add_argument("--report", action="store_true", help="start nothing, report what all runs have")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of arms.json and arms.png")
    parser.add_argument("overrides", nargs="*", help="overrides of every run, key=value")
    options = parser.parse_args(argv)
    runs = collect(options)
    texts = next(iter(runs[options.arms[0]].values())).texts[-1]
    print(f"{len(options.seeds)} seeds, {texts} trained texts, {options.chains} held-out chains per seed")
    result: dict[str, Any] = {
        "seeds": options.seeds,
        "texts": texts,
        "world": world(0, options.chains, options.patterns),
        "overrides": options.overrides,
        "table": table(runs),
        "curves": {
            arm: {str(seed): run.curves() for seed, run in by_seed.items()} for arm, by_seed in runs.items()
        },
        "gates": {},
    }
    for name, (holds, figures) in gates(runs).items():
        result["gates"][name] = {"holds": holds, "figures": figures}
        print(f"{'holds ' if holds else 'MISSED'}  {name}: {figures}")
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "arms.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(runs, options.results / "arms.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
