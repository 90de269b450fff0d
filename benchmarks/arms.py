"""The privacy agent under different rewards, from the same start: a table, curves, and which gates hold.

    python -m benchmarks.arms [--arms outcome situational penalty] [--seeds 0 1 2] [--steps 80]
                              [--batch 64] [--chains 344] [--patterns LWLW ...] [--evaluations 7]
                              [--parallel 1] [--out results/arms] [--results DIR] [--report]
                              [key=value ...]

`outcome` gives every plan and choice the reward of the whole rollout and compares whole rollouts;
`situational` rewards each decision and compares it with decisions of the same situation; `penalty` also
takes off what a plan's queries leak. `padded`, which runs only when it is named, is `situational` with
`pad_step_rewards_for_advantage`. All start from the bundled model, train on equally many texts (`--steps` of
`--batch`) and are evaluated on the same `--chains` held-out chains per seed, before, `--evaluations` times on
the way and after. `--patterns` are hop patterns, one L (private) or W (web) per hop; none: the world's.
`--parallel` runs at a time keep two cores busy each. Finished runs are not repeated, so the command can be
stopped and started again; `--report` starts nothing and reports what runs that are not at their end have in
common: evaluations up to the fewest texts that a run was last evaluated at. arms.json (its `gates` as
`benchmarks._gates` describes them) and arms.png go to `--results`.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks._figures import RESULTS, command_line, write_json
from benchmarks._gates import Change, Difference, Gate, Shares
from benchmarks._runs import Values, evaluations, launch, paired
from pipelinerl.observe.intervals import bootstrap, known
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
    "padded": (
        *SITUATIONAL,
        "privacy_hopqa.privacy_reward_weight=0",
        "finetune.rl.pad_step_rewards_for_advantage=true",
    ),
}
METRICS = ("success", "leak", "success_if_well_formed", "plan_gold_retrieved", "choose_correct")


@dataclass(frozen=True)
class Run:
    """One arm with one seed: trained texts and values per held-out chain of each evaluation."""

    texts: list[int]
    values: list[Values]

    def curve(self, metric: str) -> list[float]:
        """Mean over the chains at each evaluation."""
        return [float(known(values[metric]).mean()) for values in self.values]

    @property
    def begins(self) -> bool:
        """Whether its first evaluation is that of the start; one that is lost is not made again."""
        return self.texts[0] == 0

    @property
    def between(self) -> bool:
        """Whether it was evaluated between its first and its last evaluation."""
        return len(self.texts) > 2

    def until(self, texts: int) -> "Run":
        """Only the evaluations of models trained on at most so many texts."""
        kept = [i for i, n in enumerate(self.texts) if n <= texts]
        return Run([self.texts[i] for i in kept], [self.values[i] for i in kept])

    def curves(self) -> dict[str, list[float]]:
        """Every metric's curve, and where its points lie."""
        return {"texts": [float(n) for n in self.texts], **{m: self.curve(m) for m in METRICS}}

    def texts_to(self, target: float) -> float:
        """Trained texts until success first reaches `target`, interpolated; inf if it never does."""
        success = self.curve("success")
        at = next((i for i, reached in enumerate(success) if reached >= target), None)
        if at is None:
            return float("inf")
        if at == 0:
            return float(self.texts[0])
        share = (target - success[at - 1]) / (success[at] - success[at - 1])
        return self.texts[at - 1] + share * (self.texts[at] - self.texts[at - 1])


Runs = Mapping[str, Mapping[int, Run]]


def world(seed: int, chains: int, patterns: Sequence[str]) -> str:
    """The override for a world with many held-out chains, about six companies that are never trained on."""
    counts = "companies:4,test_companies:6,private_docs:40,web_docs:1200,train_chains:192,val_chains:8"
    weights = ",".join(f"{pattern}:1" for pattern in patterns)  # equally often
    mixture = f",patterns:{{{weights}}}" if patterns else ""
    return f"privacy_hopqa.world={{seed:{seed},size:custom,{counts},test_chains:{chains}{mixture}}}"


def run_arm(arm: str, seed: int, options: argparse.Namespace) -> Run:
    """Train and evaluate one arm with one seed, unless that was done before."""
    out = options.out / f"{arm}_{seed}"
    every = max(1, options.steps // (options.evaluations + 1)) * options.batch
    if not options.report:
        sizes = [
            f"finetune.gradient_accumulation_passes={options.batch}",
            f"finetune.max_train_steps={options.steps}",
            f"eval_every_n_versions={every}",
        ]
        where = world(seed, options.chains, options.patterns)
        launch(out, [f"seed={seed}", where, *sizes, *ARMS[arm], *options.overrides])
    found = evaluations(out)
    if not found:
        raise SystemExit(f"{out}: no evaluation yet; leave the run out or wait")
    return Run([version for version, _ in found], [values for _, values in found])


def at_point(runs: Runs, arm: str, index: int, seeds: Iterable[int] | None = None) -> list[Values]:
    """An evaluation of each seed (None: all that the arm has): 0 before training, -1 the final one."""
    return [runs[arm][seed].values[index] for seed in (runs[arm] if seeds is None else seeds)]


def against(runs: Runs, arm: str, other: str | None, metric: str) -> Difference:
    """Of the final models, arm minus other (None: its own start), paired by chain.

    Two arms are compared over the seeds that both have.
    """
    seeds = both(runs, arm, arm if other is None else other)
    before = at_point(runs, arm, 0, seeds) if other is None else at_point(runs, other, -1, seeds)
    pairs = list(zip(before, at_point(runs, arm, -1, seeds), strict=True))
    one = paired(pairs, metric)[2]
    by_seed = [paired([pair], metric)[2].mean for pair in pairs]
    return Difference(value=one.mean, low=one.low, high=one.high, n=one.n, by_seed=by_seed)


def both(runs: Runs, arm: str, other: str) -> list[int]:
    """The seeds that two arms have; none where an arm is missing."""
    return [seed for seed in runs.get(arm, {}) if seed in runs.get(other, {})]


def pooled_mean(runs: Runs, arm: str, index: int, metric: str) -> float:
    """Mean over the chains of all seeds."""
    return float(np.concatenate([known(values[metric]) for values in at_point(runs, arm, index)]).mean())


def with_a_start(runs: Runs) -> list[str]:
    """Arms of which no run has lost its evaluation before training."""
    return [arm for arm, seeds in runs.items() if all(run.begins for run in seeds.values())]


def gates(runs: Runs) -> dict[str, Gate]:
    """The orders that the arms are to show: whether each holds, and the figures that decide it.

    Of an arm in which a run has lost its start nothing that asks for the start is decided; how soon a success
    is reached (O3) only of runs that were evaluated on the way.
    """
    found: dict[str, Gate] = {}
    begun = with_a_start(runs)
    if "outcome" in begun:
        change = against(runs, "outcome", None, "success")
        found["O1 outcome raises success"] = Gate(change.low > 0, change)
        change = against(runs, "outcome", None, "leak")
        found["O2 outcome raises leakage"] = Gate(change.low > 0, change)
    if (
        {"outcome", "situational"} <= {*begun}
        and both(runs, "outcome", "situational")
        and all(run.between for run in runs["situational"].values())
    ):
        shares = shares_of_texts(runs)
        found["O3 situational needs fewer texts, every seed"] = Gate(max(shares.by_seed) < 1, shares)
        found["O3 goal: a third of the texts"] = Gate(float(np.mean(shares.by_seed)) <= 1 / 3, shares)
    if both(runs, "padded", "situational"):
        for metric in ("success", "leak"):
            change = against(runs, "padded", "situational", metric)
            found[f"padding raises {metric}"] = Gate(change.low > 0, change)
    if "penalty" in begun:
        change = against(runs, "penalty", None, "leak")
        found["O4 penalty lowers leakage"] = Gate(change.high < 0, change)
        start, end = (pooled_mean(runs, "penalty", index, "leak") for index in (0, -1))
        found["O4 goal: a third of the base"] = Gate(end <= start / 3, Change(start=start, end=end))
        change = against(runs, "penalty", None, "success")
        found["O5 penalty raises success"] = Gate(change.low > 0, change)
    if both(runs, "penalty", "situational"):
        cost = against(runs, "penalty", "situational", "success")
        found["O5 at most 3 points below situational"] = Gate(cost.value >= -0.03, cost)
        # Over the seeds that both have, or an arm with an easier seed more would be the best.
        others = [arm for arm in runs if arm != "penalty" and both(runs, "penalty", arm)]
        costs = {arm: against(runs, "penalty", arm, "success") for arm in others}
        best = min(costs, key=lambda arm: costs[arm].value)
        found[f"O5 goal: not 5 points below {best}"] = Gate(costs[best].low > -0.05, costs[best])
    return found


def shares_of_texts(runs: Runs) -> Shares:
    """Texts until `situational` has the success with which `outcome` ends, of the texts `outcome` needs."""
    shares = []
    for seed in both(runs, "outcome", "situational"):
        run = runs["outcome"][seed]
        target = run.curve("success")[-1]
        texts, of = runs["situational"][seed].texts_to(target), run.texts_to(target)
        # Where training gained nothing (`of` is 0) there is nothing to be faster at.
        shares.append(texts / of if of > 0 else float("inf"))
    return Shares(by_seed=shares)


def judged(runs: Runs) -> dict[str, dict[str, Any]]:
    """Print the gates, and which runs have lost their start; the gates as results keep them."""
    for arm, seeds in runs.items():
        for seed in (seed for seed, run in seeds.items() if not run.begins):
            print(f"{arm}, seed {seed}: its evaluation before training is lost; what asks for it is left out")
    found = gates(runs)
    for name, gate in found.items():
        print(f"{'holds ' if gate.holds else 'MISSED'}  {name}: {gate.figures.words}")
    return {name: gate.as_data() for name, gate in found.items()}


def table(runs: Runs) -> dict[str, dict[str, Any]]:
    """Print and return the means with intervals of the start and of every arm's last model.

    The start is that of the first of the arms with most seeds in which no run has lost it.
    """
    rows: dict[str, dict[str, Any]] = {}
    print(f"{'':<14}" + "".join(f"{metric:>26}" for metric in METRICS))
    begun = sorted(with_a_start(runs), key=lambda arm: -len(runs[arm]))
    models = [*(("start", arm, 0) for arm in begun[:1]), *((arm, arm, -1) for arm in runs)]
    for name, arm, index in models:
        values = at_point(runs, arm, index)
        cells = {m: bootstrap(np.concatenate([known(one[m]) for one in values])) for m in METRICS}
        rows[name] = {metric: cell._asdict() for metric, cell in cells.items()}
        shown = (f"{c.mean:.3f} [{c.low:.3f}, {c.high:.3f}]" for c in cells.values())
        print(f"{name:<14}" + "".join(f"{cell:>26}" for cell in shown))
    return rows


def shared_texts(runs: Sequence[Run]) -> list[int]:
    """Where the first run was evaluated, of what all were trained on; other curves are interpolated there."""
    begin, end = max(run.texts[0] for run in runs), min(run.texts[-1] for run in runs)
    return sorted({begin, end, *(n for n in runs[0].texts if begin < n < end)})


def draw(runs: Runs, path: Path) -> None:
    """Success and leakage on held-out chains over trained texts: a line per arm, a thin one per seed."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharex=True)
    for axis, metric in zip(axes, ("success", "leak"), strict=True):
        for index, (arm, seeds) in enumerate(runs.items()):
            style: dict[str, Any] = {"color": COLOURS[index], "linestyle": DASHES[index]}
            for run in seeds.values():
                axis.plot(run.texts, run.curve(metric), alpha=0.3, linewidth=0.8, **style)
            texts = shared_texts(list(seeds.values()))
            mean = np.mean([np.interp(texts, run.texts, run.curve(metric)) for run in seeds.values()], axis=0)
            axis.plot(texts, mean, marker=MARKERS[index], label=arm, linewidth=2, **style)
        axis.set(xlabel="texts trained on", ylabel=f"{metric}, held-out chains", ylim=(0, 1))
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)


def draw_ends(runs: Runs, path: Path) -> None:
    """Success over leakage of runs asked before and after training alone, where a curve would mislead.

    For each arm its mean with intervals, small marks for the seeds, and an arrow from the start.
    """
    figure, axis = plt.subplots(figsize=(6.2, 4.6))
    begun = sorted(with_a_start(runs), key=lambda arm: -len(runs[arm]))[:1]
    models = [*(("start", arm, 0) for arm in begun), *((arm, arm, -1) for arm in runs)]
    means: dict[str, tuple[float, float]] = {}
    for index, (name, arm, at) in enumerate(models):
        colour = "0.25" if name == "start" else COLOURS[index - len(begun)]
        mark = "X" if name == "start" else MARKERS[index - len(begun)]
        of_seed = at_point(runs, arm, at)
        leak, success = (
            bootstrap(np.concatenate([known(one[metric]) for one in of_seed]))
            for metric in ("leak", "success")
        )
        means[name] = leak.mean, success.mean
        axis.scatter(
            *([float(known(one[metric]).mean()) for one in of_seed] for metric in ("leak", "success")),
            color=colour,
            marker=mark,
            s=22,
            alpha=0.45,
            linewidths=0,
        )
        axis.errorbar(
            *means[name],
            xerr=[[leak.mean - leak.low], [leak.high - leak.mean]],
            yerr=[[success.mean - success.low], [success.high - success.mean]],
            color=colour,
            marker=mark,
            markersize=8,
            capsize=3,
            linestyle="none",
            label=f"{name} ({len(of_seed)} seeds)",
        )
        if name != "start" and begun:
            line = {"arrowstyle": "->", "color": colour, "alpha": 0.5, "shrinkA": 8, "shrinkB": 8}
            axis.annotate("", means[name], means["start"], arrowprops=line)
    axis.set(
        xlabel="leakage: share of rollouts that leak an answer or full information",
        ylabel="success: share of chains answered",
        xlim=(0, None),
        ylim=(0, 1),
    )
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)


def collect(options: argparse.Namespace) -> Runs:
    """All runs, `options.parallel` at a time, up to the texts that all have been trained on."""
    pairs = [(arm, seed) for seed in options.seeds for arm in options.arms]
    with ThreadPoolExecutor(options.parallel) as pool:
        made = list(pool.map(lambda pair: run_arm(pair[0], pair[1], options), pairs))
    budget = min(run.texts[-1] for run in made) + options.batch
    runs: dict[str, dict[int, Run]] = {arm: {} for arm in options.arms}
    for (arm, seed), run in zip(pairs, made, strict=True):
        runs[arm][seed] = run.until(budget)
    return runs


def main() -> int:
    options = command_line(__doc__, arms=ARMS)
    runs = collect(options)
    texts = next(iter(runs[options.arms[0]].values())).texts[-1]
    print(f"{len(options.seeds)} seeds, {texts} trained texts, {options.chains} held-out chains per seed")
    result: dict[str, Any] = {"seeds": options.seeds, "texts": texts, "overrides": options.overrides}
    result |= {"world": world(0, options.chains, options.patterns), "table": table(runs)}
    result["curves"] = {
        arm: {str(seed): run.curves() for seed, run in seeds.items()} for arm, seeds in runs.items()
    }
    result["gates"] = judged(runs)
    kept = (options.results or RESULTS) / "arms.json"
    write_json(kept, result)
    draw(runs, kept.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
