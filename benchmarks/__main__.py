"""Runs a learning experiment that a specification describes: `python -m benchmarks run SPEC`.

    python -m benchmarks run SPEC [--hardware cpu|gpu] [--arms NAME ...] [--seeds N ...] [--model DIR]
                                  [--at-once N] [--gpu CARD] [--limit SECONDS] [--work DIR] [--out FILE]
                                  [key=value ...]

SPEC is a file of `benchmarks/specs` without its ending, or the path of another; `benchmarks/experiment.py`
says what stands in it. Of each arm and seed one run of the launcher, evaluated before, while and after it
trains on problems that training never gives, `--at-once` of them at a time. `key=value` are for every run. A
finished run in `--work` (`results/SPEC`) is not made again; what `--limit` seconds ended, all runs together,
goes on or begins anew with the same command. Table and figure (`--out`, else `benchmarks/results`) are
written anew behind every run. The status is 1 where a goal is missed or a run is left, 2 where nothing began.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import experiment
from benchmarks.experiment import SpecError
from pipelinerl.base.errors import CommandParser, printable


def parser() -> argparse.ArgumentParser:
    made = CommandParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    made.add_argument("action", choices=("run",))
    made.add_argument("spec")
    made.add_argument("--hardware", choices=("cpu", "gpu"))
    made.add_argument("--arms", nargs="+")
    made.add_argument("--seeds", nargs="+", type=int)
    made.add_argument("--model", type=Path)
    made.add_argument("--at-once", type=int)
    made.add_argument("--gpu", metavar="CARD")
    made.add_argument("--limit", type=float, default=36_000.0)
    made.add_argument("--work", type=Path)
    made.add_argument("--out", type=Path)
    return made


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Options, and in `overrides` every `key=value`, wherever it stands."""
    overrides = [word for word in argv if "=" in word and not word.startswith("-")]
    options = parser().parse_args([word for word in argv if word not in overrides])
    options.overrides = overrides
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = parsed(sys.argv[1:] if argv is None else argv)
    try:
        return experiment.run(options)
    except SpecError as error:
        print(printable(str(error)), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
