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

from benchmarks import _learning_figure
from benchmarks._figures import RESULTS, command_line, report, write_json
from benchmarks._learned import figures_of, panel, row_of, table_of
from benchmarks._runs import launch, run_to_end

START = "domains/raro/checkpoint"
EVERY = 1280
"""Texts between two evaluations: ten steps of the profile."""
TITLE = "problems that training never asks"


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


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv)
    model = start(options.work, options.tokens)
    rows = []
    for seed in options.seeds:
        out = options.work / f"seed_{seed}"
        given = [f"model_path={model}", f"seed={seed}", f"finetune.max_train_steps={options.steps}"]
        launch(out, [*given, f"eval_every_n_versions={EVERY}", *options.overrides], "coding")
        rows.append(row_of(seed, out))
    table = table_of(rows)
    out = options.out or RESULTS / "coding.json"
    settings = {"seeds": options.seeds, "tokens": options.tokens, "steps": options.steps}
    missed = report("coding", figures_of(rows, table), settings, out)
    kept = {**json.loads(out.read_text()), "overrides": options.overrides}
    write_json(out, {**kept, "table": table, "rows": rows})
    _learning_figure.draw({TITLE: panel(rows, "success")}, out.with_suffix(".png"))
    return missed


if __name__ == "__main__":
    sys.exit(main())
