"""Does a pretrained language model learn to help where helping pays? The reputation game on cards.

    python -m benchmarks.gpu.reputation [--model results/smollm2] [--hardware gpu|cpu] [--limit 560.0]
                                        [--seeds 0 1 2] [--steps 60] [--tapes 200] [--per-card 3]
                                        [--work results/gpu_reputation] [--out FILE] [key=value ...]

`--model` (a folder of `pipelinerl.pretrained smollm2`) imitates the player of habits, which teaches the form
of the answer and to look at the state. Then every seed's run trains that model with
`+preset=reputation_hacking_pretrained`, `--per-card` runs at a time on each card, and plays `--tapes`
held-out tapes before and after, likeliest answers. The table has them beside the optimum and the ladder on
the same tapes, and the figure what drawn play took of the margin in training, in stretches.

Finished runs are not repeated and those that `--limit` seconds ended go on with the same command. `key=value`
are for every run; `--hardware cpu` rehearses at a tiny size.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks._figures import RESULTS, Figure, at_least, command_line, machine, report, write_json
from benchmarks.gpu import runs
from benchmarks.gpu.side_by_side import UNCOMPILED, Task, on_a_card, run_all, slots
from domains.reputation_hacking.game.dynamics import ACTIONS
from domains.reputation_hacking.game.optimum import Yardstick
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import returns
from domains.reputation_hacking.language.log import read_episodes
from pipelinerl.observe.intervals import bootstrap, known
from pipelinerl.observe.plots import COLOURS, DASHES, MARKERS

PRESET = ("+domain=reputation_hacking", "+preset=reputation_hacking_pretrained")
PRICE, GOAL = 0.7, 0.25
STRETCHES = 12
"""Of training, in the figure."""
LABEL_SHARE = 0.2
"""Of the margin, between two labels of the figure."""
NAMES = {"all_help": "all-HELP", "all_signal": "all-SIGNAL", "cem": "fitted linear rule"}
"""Of the ladder's policies, as the domain's page has them."""
LEAST_S = 60.0
"""With less left nothing is begun."""
KV_BYTES = 4 * 2**30
TINY = {
    "start": (
        *("bootstrap.budget=0.004", "bootstrap.pack_tokens=2048", "bootstrap.gate_demonstrations=100"),
        "bootstrap.workers=1",
    ),
    "run": (
        *("finetune.attempts=2", "finetune.gradient_accumulation_passes=100", "max_lag=200"),
        *("preprocess.max_ready_samples_per_lead=200", "finetune.seq_length=2048"),
    ),
}
"""For a rehearsal on CPUs."""


def commands(options: argparse.Namespace, seed: int | None) -> list[str]:
    """Of the supervised start, or of a seed's run."""
    gpu, start = options.hardware == "gpu", options.work / "start"
    shared = [*PRESET, f"hardware={options.hardware}", f"dataset_loader_params.c_signal=[{PRICE}]"]
    if seed is None:
        words = [f"bootstrap.start={options.model}", f"bootstrap.out={start}"]
        more = ("bootstrap.workers=8",) if gpu else TINY["start"]
        return [sys.executable, "-m", "pipelinerl.bootstrap", *shared, *words, *more]
    given = [*shared, f"model_path={start}", f"seed={seed}", f"finetune.max_train_steps={options.steps}"]
    given.append(f"dataset_loader_params.heldout_count={options.tapes}")
    given += (*on_a_card(KV_BYTES, http_processes=4), *UNCOMPILED) if gpu else TINY["run"]
    return runs.launcher(options.work / f"seed_{seed}", [*given, *options.overrides])


def played(episodes: Sequence[dict[str, Any]], yardstick: Yardstick) -> dict[str, Any]:
    """What one version did on the tapes of `yardstick`: means, and the share of the margin with interval.

    The interval is of what the optimum earned more on the same tape, of which tapes differ little.
    """
    returned = [one["episode_return"] for one in sorted(episodes, key=lambda one: int(one["seed"]))]
    regret = bootstrap(returns(yardstick.optimal) - known(returned))
    keys = ("true_impact", "manipulation_score", "invalid")
    return {
        "episodes": len(episodes),
        "version": episodes[0]["version"],
        "J": float(np.mean(returned)),
        "regret": regret.mean,
        "share_of_margin": [
            yardstick.share(yardstick.best - one) for one in (regret.mean, regret.high, regret.low)
        ],
        "returns": returned,
        **{name: float(np.mean([one["actions"][name] for one in episodes])) for name in ACTIONS},
        **{key: float(np.mean([one[key] for one in episodes])) for key in keys},
    }


def row_of(out: Path, tapes: int) -> dict[str, Any]:
    """First and last evaluated version of a finished run, and its stretches of training.

    A start that was stopped leaves its episodes behind: of those with one tape and version the last counts.
    Raises ValueError where the start or the last model was not asked about every tape.
    """
    episodes = read_episodes(out)
    evaluated = {(one["version"], one["seed"]): one for one in episodes if not one["training"]}
    versions = sorted({version for version, _ in evaluated})
    ends = [[one for (of, _), one in evaluated.items() if of == end] for end in (versions[0], versions[-1])]
    if versions[0] != 0 or len(versions) == 1 or {len(end) for end in ends} != {tapes}:
        counts = ", ".join(f"{sum(of == one for of, _ in evaluated)} of version {one}" for one in versions)
        raise ValueError(f"{out.name}: {tapes} tapes before and after were asked for, found {counts}")
    yardstick = Yardstick(Params(c_signal=PRICE), {seed for _, seed in evaluated})
    before, after = (played(end, yardstick) for end in ends)
    return {
        "before": before,
        "after": after,
        "training": stretches([one for one in episodes if one["training"]]),
        "ladder": yardstick.ladder(),
        "rates": runs.report_of(out).get("rates"),
        "machine": machine(),
    }


def stretches(trained: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drawn play over training: texts at the end of each stretch, and the share of the margin on its tapes.

    The share is None where few tapes leave no margin to divide by.
    """
    ordered = sorted(trained, key=lambda one: one["version"])
    found = []
    for part in np.array_split(np.arange(len(ordered)), min(STRETCHES, len(ordered))):
        window = [ordered[index] for index in part]
        yardstick = Yardstick(Params(c_signal=PRICE), {one["seed"] for one in window})
        share = yardstick.share(float(np.mean([one["episode_return"] for one in window])))
        found.append({"texts": window[-1]["version"], "share": share})
    return found


def start_tasks(options: argparse.Namespace) -> Iterator[Task]:
    """The start, unless it is there."""
    made = options.work / "start" / "recipe.json"
    if not made.is_file():
        log = options.work / "start.log"
        yield Task("start", commands(options, None), log, lambda _: made.is_file())


def run_tasks(options: argparse.Namespace) -> Iterator[Task]:
    """The runs that are not finished."""
    for seed in options.seeds:
        row, out = options.work / f"row_{seed}.json", options.work / f"seed_{seed}"

        def keep(status: int, row: Path = row, out: Path = out) -> bool:
            runs.keep(out, row)
            if status == 0:
                with runs.survived(f"the row of {out.name}"):
                    write_json(row, row_of(out, options.tapes))
            return row.is_file()

        if not row.is_file():
            yield Task(f"seed {seed}", commands(options, seed), options.work / f"seed_{seed}.log", keep)


def figures_of(rows: dict[str, dict[str, Any]]) -> Iterator[Figure]:
    for seed, row in rows.items():
        share, before = row["after"]["share_of_margin"][0], row["before"]["share_of_margin"][0]
        yield at_least(f"seed {seed}: share of the margin", share, "x", GOAL)
        yield Figure(f"seed {seed}: share of the margin at the start", before, "x")
        yield Figure(f"seed {seed}: answers without an action, of 50", row["after"]["invalid"], "")
        if row["rates"] is not None:
            yield Figure(f"seed {seed}: trained", float(row["rates"]["trained_texts_per_second"]), "texts/s")


def labels(ladder: Sequence[dict[str, Any]]) -> list[tuple[float, float, str]]:
    """(share, height of its label, the text's name) from below; labels are at least LABEL_SHARE apart.

    Those that would lie on each other are moved apart by the same distance up and down.
    """
    rungs = sorted((float(one["share"]), NAMES.get(one["policy"], one["policy"])) for one in ladder)
    clusters: list[list[tuple[float, str]]] = []
    for rung in rungs:
        clusters.append([rung])
        while len(clusters) > 1 and _lowest(clusters[-1]) - _highest(clusters[-2]) < LABEL_SHARE:
            clusters[-2:] = [clusters[-2] + clusters[-1]]
    return [
        (share, _lowest(cluster) + number * LABEL_SHARE, name)
        for cluster in clusters
        for number, (share, name) in enumerate(cluster)
    ]


def _lowest(cluster: Sequence[tuple[float, str]]) -> float:
    """Height of the lowest label of those that stand above each other around their mean share."""
    return float(np.mean([share for share, _ in cluster])) - LABEL_SHARE * (len(cluster) - 1) / 2


def _highest(cluster: Sequence[tuple[float, str]]) -> float:
    return _lowest(cluster) + LABEL_SHARE * (len(cluster) - 1)


def draw(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """Share of the margin that drawn play took in training, a line for each seed, beside the ladder.

    Marks are what the likeliest answers took of the held-out tapes before and after.
    """
    figure, axis = plt.subplots(figsize=(7, 4.2))
    for index, (seed, row) in enumerate(rows.items()):
        parts = [one for one in row["training"] if one["share"] is not None]
        texts, shares = ([one[key] for one in parts] for key in ("texts", "share"))
        axis.plot(texts, shares, color=COLOURS[index], linestyle=DASHES[index], label=f"seed {seed}, drawn")
        ends = [row[end] for end in ("before", "after")]
        axis.plot(
            [one["version"] for one in ends],
            [one["share_of_margin"][0] for one in ends],
            color=COLOURS[index],
            linestyle="none",
            marker=MARKERS[index],
            fillstyle="none",
            label=f"seed {seed}, likeliest, before and after",
        )
    for share, height, name in labels(next(iter(rows.values()))["ladder"]):
        axis.axhline(share, color="grey", linewidth=0.6)
        axis.annotate(
            name,
            (1.0, share),
            (1.05, height),
            xycoords=("axes fraction", "data"),
            textcoords=("axes fraction", "data"),
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "color": "grey", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0},
        )
    axis.set(xlabel="texts trained on", ylabel="share of the margin", title=f"a SIGNAL costs {PRICE:g}")
    axis.legend(frameon=False, fontsize=8, loc="center right", bbox_to_anchor=(1.0, 0.35))
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv)
    runs.leave_in_order()
    end, gpu = time.monotonic() + options.limit, options.hardware == "gpu"
    options.work, options.model = options.work.absolute(), options.model.absolute()
    options.work.mkdir(parents=True, exist_ok=True)
    out = options.out or (RESULTS if gpu else options.work) / "gpu_reputation.json"
    if run_all(list(start_tasks(options)), slots(options.hardware, 1), end, LEAST_S):
        run_all(list(run_tasks(options)), slots(options.hardware, options.per_card), end, LEAST_S)
    found = {seed: options.work / f"row_{seed}.json" for seed in options.seeds}
    rows = {str(seed): json.loads(path.read_text()) for seed, path in found.items() if path.is_file()}
    settings = {"hardware": options.hardware, "steps": options.steps, "price": PRICE, "tapes": options.tapes}
    missed = report("gpu_reputation", figures_of(rows), settings, out)
    write_json(out, json.loads(out.read_text()) | {"rows": rows})
    if rows:
        draw(rows, out.with_suffix(".png"))
    left = [str(seed) for seed in options.seeds if str(seed) not in rows]
    print(f"not finished: {', '.join(left) or 'nothing'}")
    return 1 if left or missed else 0


if __name__ == "__main__":
    sys.exit(main())
