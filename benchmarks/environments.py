"""What a model learns in environments of other ecosystems on two cores, several seeds.

    python -m benchmarks.environments [--domain verifiers|textarena] [--model DIR] [--seeds 0 1 2]
                                      [--work results/environments] [--out FILE]

`verifiers`: the taskset `halving` of `docs/examples/verifiers`, with the bundled guessing model unless
another is given. `textarena`: GuessTheNumber alone, with the folder that
`python -m pipelinerl.pretrained smollm2 DIR` made. Of each seed one run of `hardware=cpu`; a finished run in
`--work` is not run again. Values before and after are paired by test problem and pooled over the seeds, with
95 % bootstrap intervals. The table goes to `--out` (`results/environments_DOMAIN.json` beside this file).
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _runs
from benchmarks._figures import RESULTS, ROOT, Figure, command_line, report, write_json
from pipelinerl.observe.history import read_metrics

EXAMPLES = ROOT / "docs/examples/verifiers"
OVERRIDES = {
    "verifiers": [
        "dataset_loader_params.env.taskset.id=halving",
        "dataset_loader_params.count=200",
        "dataset_loader_params.test_count=192",
        "wandb.use_wandb=false",
        "observe.rollout_page=false",
    ],
    "textarena": [
        "dataset_loader_params.games={Nim-v0: null, TicTacToe-v0-train: null}",
        "dataset_loader_params.test_count=40",
        "wandb.use_wandb=false",
        "observe.rollout_page=false",
    ],
}
METRICS = ("reward", "success", "no_answer", "reward_halves")


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
    if options.model is None and options.domain == "textarena":
        print("--model names no folder; python -m pipelinerl.pretrained smollm2 FOLDER makes one")
        return 2
    # Tasksets are looked for on the Python path, also by the processes of a run.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    model = [] if options.model is None else [f"model_path={options.model.absolute()}"]
    overrides, rows = OVERRIDES[options.domain], []
    for seed in options.seeds:
        out = options.work.absolute() / f"{options.domain}_{seed}"
        _runs.launch(out, [*model, f"seed={seed}", *overrides], domain=options.domain)
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
    out = options.out or RESULTS / f"environments_{options.domain}.json"
    settings = {"domain": options.domain, "seeds": options.seeds, "overrides": overrides}
    report("environments", figures, settings, out)
    write_json(out, {**json.loads(out.read_text()), "table": table, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
