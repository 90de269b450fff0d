"""Train and evaluate over prices and rewards: `python -m domains.reputation_hacking.ablate --out DIR`."""

import argparse
from dataclasses import replace
from pathlib import Path

from domains.reputation_hacking.game import console
from domains.reputation_hacking.game.dynamics import Tapes
from domains.reputation_hacking.game.mitigations import Mitigation
from domains.reputation_hacking.game.optimum import PRICES, optimum_row, write_rows
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.ppo.ablation import Cell, numbers, summary, train_cells
from domains.reputation_hacking.ppo.paired import held_out
from domains.reputation_hacking.ppo.recipes import BASE, QUICK_STEPS
from pipelinerl.base.errors import CommandParser, leave

ABLATION = "ablation.csv"
FEATURES = ("scaled", "raw")
QUICK_PRICES = (0.0, 0.7, 1.2)
TRAIN_SEEDS = 2


def arguments() -> argparse.ArgumentParser:
    parser = CommandParser(prog="python -m domains.reputation_hacking.ablate", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR")
    add("--quick", action="store_true", help="three prices, one training seed, short training")
    add("--c-signal", type=console.number_list, metavar="F,..", help="prices")
    add("--mitigations", default="none", metavar="a,b", help="reward variants, with ; for constants")
    add("--features", default=",".join(FEATURES), metavar="a,b", help=f"of {', '.join(FEATURES)}")
    add("--train-seeds", type=int, metavar="K")
    add("--steps", type=int, metavar="N", help="steps of each training")
    add("--jobs", type=int, default=1, metavar="J", help="processes")
    add("--no-ppo", action="store_true", help="only the optimum")
    return parser


def cells_of(options: argparse.Namespace) -> list[Cell]:
    """The grid that the command line asks for. Raises ValueError."""
    steps = options.steps or (QUICK_STEPS if options.quick else BASE.total_steps)
    count = options.train_seeds or (1 if options.quick else TRAIN_SEEDS)
    separator = ";" if ";" in options.mitigations or ":" in options.mitigations else ","
    names = [str(Mitigation.parse(text)) for text in options.mitigations.split(separator)]
    features = options.features.split(",")
    for name in features:
        if name not in FEATURES:
            raise ValueError(f"--features {name}: choose among {', '.join(FEATURES)}")
    recipe, seeds = replace(BASE, total_steps=steps), tuple(held_out(options.quick))
    return [
        Cell(c_signal=price, mitigation=name, features=kind, train_seed=seed, recipe=recipe, seeds=seeds)
        for name in names
        for price in prices_of(options)
        for kind in features
        for seed in range(count)
    ]


def prices_of(options: argparse.Namespace) -> list[float]:
    return list(options.c_signal or (QUICK_PRICES if options.quick else PRICES))


def execute(options: argparse.Namespace) -> None:
    """Run the grid, write both tables and both figures, print a summary."""
    from domains.reputation_hacking.game.transition import transition, write_transition
    from domains.reputation_hacking.ppo.plots import draw_mitigations

    out, params, seeds = console.output_folder(options.out), Params(), held_out(options.quick)
    cells = [] if options.no_ppo else cells_of(options)
    optimum = [optimum_row(params.but(c_signal=price), seeds) for price in prices_of(options)]
    write_rows(out / console.OPTIMUM_FILE, optimum)
    rows = train_cells(cells, out / ABLATION, options.jobs)
    usable = [numbers(row) for row in rows if not row["error"]]
    greedy = [row for row in usable if row["policy"] == "deterministic"]
    tapes = Tapes.from_seeds(params, seeds)
    plain = [row for row in greedy if row["mitigation"] == "none"]
    write_transition(out, out / console.PLOTS_FOLDER, transition(params, tapes, optimum, plain))
    draw_mitigations(out / console.PLOTS_FOLDER / "mitigations.png", greedy, len(seeds))
    print(summary(greedy, [row for row in rows if row["error"]]))
    print(f"wrote {out / ABLATION}, optimum.csv, transition.json, plots/transition.png and mitigations.png")


main = console.command("ablate", arguments, execute)

if __name__ == "__main__":
    leave("ablate", main)
