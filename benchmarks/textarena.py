"""What a real language model learns of one text game on two cores, several seeds.

    python -m benchmarks.textarena [--model DIR] [--seeds 0 1 2] [--out FILE] [--work results/textarena]

The weights are those that `python -m pipelinerl.pretrained smollm2 DIR` made. Of each seed one run of
`+domain=textarena hardware=cpu` with GuessTheNumber alone, of which 40 deals are played before and after; a
finished run in `--work` is not run again. Rewards are paired by deal and pooled over the seeds, with 95 %
bootstrap intervals. The table goes to `--out` (`results/textarena.json` beside this file).
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _runs
from benchmarks._figures import RESULTS, Figure, command_line, report, write_json
from pipelinerl.observe.history import read_metrics

GAME = "GuessTheNumber-v0-train"
OVERRIDES = [
    "dataset_loader_params.games={Nim-v0: null, TicTacToe-v0-train: null}",
    "dataset_loader_params.test_count=40",
    "wandb.use_wandb=false",
    "observe.rollout_page=false",
]
METRICS = ("reward", "success", "no_answer", "num_turns")


def row_of(seed: int, out: Path) -> dict[str, Any]:
    """What a finished run reached: values of each deal before and after, and its time."""
    (_, before), (texts, after) = _runs.evaluations(out)
    records = read_metrics(out, "finetune")
    steps = [one for one in records if "stats/samples" in one]
    values = {name: [before[name], after[name]] for name in METRICS if name in before and name in after}
    minutes = (steps[-1]["time"] - steps[0]["time"]) / 60
    return {"seed": seed, "texts": texts, "steps": len(steps), "training_min": minutes, "values": values}


def _sides(values: Mapping[str, Sequence[Any]]) -> tuple[_runs.Values, _runs.Values]:
    """Values by metric before, and those after."""
    return {name: before for name, (before, _) in values.items()}, {
        name: after for name, (_, after) in values.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv)
    if options.model is None or not (options.model / "config.json").is_file():
        print(f"--model {options.model}: no model there; python -m pipelinerl.pretrained smollm2 FOLDER")
        return 2
    rows = []
    for seed in options.seeds:
        out = options.work.absolute() / f"seed_{seed}"
        chosen = [f"model_path={options.model.absolute()}", f"seed={seed}", *OVERRIDES]
        _runs.launch(out, chosen, domain="textarena")
        rows.append(row_of(seed, out))
    pairs = [_sides(row["values"]) for row in rows]
    figures, table = [], {}
    for name in rows[0]["values"]:
        before, after, difference = _runs.paired(pairs, name)
        table[name] = {
            "before": before._asdict(),
            "after": after._asdict(),
            "difference": difference._asdict(),
        }
        figures += [Figure(f"{name} {when}", one["mean"], "") for when, one in table[name].items()]
    figures += [Figure(f"seed {row['seed']}: training", row["training_min"], "min") for row in rows]
    out = options.out or RESULTS / "textarena.json"
    report("textarena", figures, {"game": GAME, "seeds": options.seeds, "overrides": OVERRIDES}, out)
    write_json(out, {**json.loads(out.read_text()), "table": table, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
