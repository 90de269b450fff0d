"""Print the exact optimum over prices: `python -m domains.reputation_hacking.optimum --c-signal 0.6,0.7`."""

import argparse
from pathlib import Path

from domains.reputation_hacking.game import console
from domains.reputation_hacking.game.dynamics import Tapes
from domains.reputation_hacking.game.optimum import HORIZONS, horizons, number, optimum_row, write_rows
from domains.reputation_hacking.game.params import PRESETS, parse_setting, preset
from domains.reputation_hacking.ppo.paired import QUICK_SEEDS, held_out
from pipelinerl.base.errors import CommandParser, leave

PRICES = "0,0.4,0.5,0.6,0.65,0.675,0.7,0.75,0.8,0.9,1"


def arguments() -> argparse.ArgumentParser:
    parser = CommandParser(prog="python -m domains.reputation_hacking.optimum", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help=f"{QUICK_SEEDS} evaluation seeds")
    add("--out", type=Path, metavar="DIR", help="write optimum.csv, transition.json and plots/transition.png")
    add("--c-signal", type=console.number_list, default=PRICES, metavar="F,..", help="prices")
    add("--horizon", type=console.seed_list, metavar="K,..", help="episodes to look ahead")
    add("--seeds", type=console.seed_list, metavar="10000:11000")
    add("--preset", choices=sorted(PRESETS), default="default")
    add("--set", action="append", default=[], metavar="param=value")
    return parser


def execute(options: argparse.Namespace) -> None:
    """Solve every price, print the table and the look-ahead, and draw if asked."""
    from domains.reputation_hacking.game.transition import transition, write_transition

    params = preset(options.preset, **dict(parse_setting(text) for text in options.set))
    seeds = options.seeds or held_out(options.quick)
    rows = []
    with console.progress() as bar:
        for price in bar.track(options.c_signal, description="prices"):
            rows.append(optimum_row(params.but(c_signal=price), seeds))
    tapes = Tapes.from_seeds(params, sorted(seeds))
    print(f"exact optimum, calibrated evaluation, n={len(seeds)} seeds {min(seeds)}..{max(seeds)}")
    print("c_signal    HELP      TI  reward      MS    J opt  J const  margin    rule  observed  rest at end")
    for row in rows:
        print(
            f"{row['c_signal']:8.3f}{row['help']:8.2f}{row['true_impact']:8.2f}{row['reward']:8.2f}"
            f"{row['manipulation_score']:8.2f}{row['J_optimum']:9.3f}{row['J_constant']:9.3f}{row['margin']:8.3f}"
            f"{number(row['rule_share'], 2):>8}{number(row['observed_only_share'], 2):>10}"
            f"{row['rest_last_step']:13.2f}"
        )
    print(
        "rule, observed: share of the margin for HELP while working, and for the optimum without hidden trend"
    )
    ahead = horizons(params, tapes, options.horizon or HORIZONS)
    print(
        "net value of a SIGNAL at which all-SIGNAL equals all-HELP, by episodes looked ahead: "
        + ", ".join(f"{count}: {value:.3f}" for count, value in ahead)
    )
    if options.out is not None:
        out = console.output_folder(options.out)
        write_rows(out / console.OPTIMUM_FILE, rows)
        write_transition(out, out / console.PLOTS_FOLDER, transition(params, tapes, rows))
        print(
            f"wrote {out / console.OPTIMUM_FILE}, transition.json and {console.PLOTS_FOLDER}/transition.png"
        )


main = console.command("optimum", arguments, execute)

if __name__ == "__main__":
    leave("optimum", main)
