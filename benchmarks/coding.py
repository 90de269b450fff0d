"""Does a small model learn to write the programs that `+domain=coding` makes problems of?

    python -m benchmarks.coding [--seeds 0 1 2] [--tokens 2000000] [--steps 40] [--work results/coding]
                                [--out FILE] [key=value ...]

The bundled model of half a million parameters, which was made for another game, first imitates demonstrations
of which half have a mistake (`--tokens` of them, once); then one run for each seed, with an evaluation every
ten steps on questions that training never asks. Success before and after is paired by question, with 95 %
bootstrap intervals. What is finished in `--work` is not repeated. The table goes to `--out`
(`results/coding.json` beside this file), the figure beside it.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _learning_figure
from benchmarks._figures import RESULTS, Figure, command_line, report, write_json
from benchmarks._runs import evaluations, launch, paired, run_to_end, texts_per_s
from pipelinerl.observe.history import read_metrics

START = "domains/raro/checkpoint"
EVERY = 1280
"""Texts between two evaluations: ten steps of the profile."""


def start(work: Path, tokens: int) -> Path:
    """The model that the runs begin with; made if it is not there."""
    folder = (work / "start").absolute()
    if not (folder / "recipe.json").is_file():
        run_to_end(
            [
                *(sys.executable, "-m", "pipelinerl.bootstrap", "+domain=coding", "hardware=cpu"),
                *(f"bootstrap.start={START}", f"bootstrap.out={folder}", "bootstrap.learning_rate=0.0015"),
                f"bootstrap.phases=[{{name: imitate, tokens: {tokens}}}]",
            ]
        )
    return folder


def row_of(seed: int, out: Path) -> dict[str, Any]:
    """What a run reached, and success at each evaluation."""
    found, records = evaluations(out), read_metrics(out, "finetune")
    steps = [row for row in records if "stats/samples" in row]
    return {
        "seed": seed,
        "steps": steps[-1]["stats/completed_steps"],
        "minutes": (steps[-1]["time"] - steps[0]["time"]) / 60,
        "texts_per_s": texts_per_s(records),
        "before": found[0][1]["success"],
        "after": found[-1][1]["success"],
        "curve": [[version, _mean(values["success"])] for version, values in found],
    }


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known)


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv)
    model = start(options.work, options.tokens)
    rows = []
    for seed in options.seeds:
        out = options.work / f"seed_{seed}"
        given = [f"model_path={model}", f"seed={seed}", f"finetune.max_train_steps={options.steps}"]
        launch(out, [*given, f"eval_every_n_versions={EVERY}", *options.overrides], "coding")
        rows.append(row_of(seed, out))
    pairs = [({"success": row["before"]}, {"success": row["after"]}) for row in rows]
    figures = []
    for name, interval in zip(("before", "after", "difference"), paired(pairs, "success"), strict=True):
        figures += [
            Figure(f"success {name}", interval.mean, ""),
            Figure(f"success {name}, lower end", interval.low, ""),
            Figure(f"success {name}, upper end", interval.high, ""),
        ]
    figures += [Figure(f"seed {row['seed']}: training", row["minutes"], "min") for row in rows]
    figures += [Figure(f"seed {row['seed']}: trained", row["texts_per_s"], "texts/s") for row in rows]
    out = options.out or RESULTS / "coding.json"
    settings = {"seeds": options.seeds, "tokens": options.tokens, "steps": options.steps}
    missed = report("coding", figures, settings, out)
    write_json(out, {**json.loads(out.read_text()), "overrides": options.overrides, "rows": rows})
    panel = {row["seed"]: row["curve"] for row in rows}
    _learning_figure.draw({"problems that training never asks": panel}, out.with_suffix(".png"))
    return missed


if __name__ == "__main__":
    sys.exit(main())
