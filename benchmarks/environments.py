"""What a model learns in environments of other ecosystems on two cores, several seeds.

    python -m benchmarks.environments [--domain verifiers|textarena] [--model DIR] [--seeds 0 1 2]
                                      [--work results/environments] [--out FILE]

`verifiers`: the taskset `halving` of `docs/examples/verifiers`, with the bundled guessing model unless
another is given. `textarena`: GuessTheNumber alone, with the folder that
`python -m pipelinerl.pretrained smollm2 DIR` made. Of each seed one run of `hardware=cpu`, evaluated before,
while and after it trains; a finished run in `--work` is not run again. Values before and after are paired by
test problem and pooled over the seeds, with 95 % bootstrap intervals. The table goes to `--out`
(`results/environments_DOMAIN.json` beside this file), the figure beside it.
"""

import json
import os
import sys
from collections.abc import Sequence

from benchmarks import _learning_figure, _runs
from benchmarks._figures import RESULTS, ROOT, command_line, report, write_json
from benchmarks._learned import figures_of, panel, row_of, table_of

EXAMPLES = ROOT / "docs/examples/verifiers"
OVERRIDES = {
    "verifiers": [
        "dataset_loader_params.env.taskset.id=halving",
        "dataset_loader_params.count=200",
        "dataset_loader_params.test_count=192",
        "eval_every_n_versions=640",
        "wandb.use_wandb=false",
        "observe.rollout_page=false",
    ],
    "textarena": [
        "dataset_loader_params.games={Nim-v0: null, TicTacToe-v0-train: null}",
        "dataset_loader_params.test_count=40",
        "eval_every_n_versions=640",
        "wandb.use_wandb=false",
        "observe.rollout_page=false",
    ],
}
SHOWN = {
    "verifiers": {
        "reward_halves": "numbers that a guess rules out",
        "success": "guesses that rule out half",
        "metric_inside": "guesses in the range",
    },
    "textarena": {
        "reward": "reward of a game",
        "success": "games solved",
        "no_answer": "ended by a bad move",
    },
}
"""Panels of a domain's figure: metric and title."""


def find_examples() -> None:
    """Tasksets are looked for on the Python path, also by the processes of a run."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv)
    if options.model is None and options.domain == "textarena":
        print("--model names no folder; python -m pipelinerl.pretrained smollm2 FOLDER makes one")
        return 2
    find_examples()
    model = [] if options.model is None else [f"model_path={options.model.absolute()}"]
    overrides, rows = OVERRIDES[options.domain], []
    for seed in options.seeds:
        out = options.work.absolute() / f"{options.domain}_{seed}"
        _runs.launch(out, [*model, f"seed={seed}", *overrides], domain=options.domain)
        rows.append(row_of(seed, out))
    table = table_of(rows)
    out = options.out or RESULTS / f"environments_{options.domain}.json"
    settings = {"domain": options.domain, "seeds": options.seeds, "overrides": overrides}
    report("environments", figures_of(rows, table), settings, out)
    write_json(out, {**json.loads(out.read_text()), "table": table, "rows": rows})
    panels = {title: panel(rows, metric) for metric, title in SHOWN[options.domain].items()}
    _learning_figure.draw(panels, out.with_suffix(".png"), "percent, held-out problems")
    return 0


if __name__ == "__main__":
    sys.exit(main())
