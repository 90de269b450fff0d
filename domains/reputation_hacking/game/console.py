"""What the commands of this domain share: one-line errors, seeds, output folders, progress."""

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from domains.reputation_hacking.game.tracing import TRACE_MAX_MB
from pipelinerl.base.errors import printable

DEFAULT_OUT = Path("outputs/reputation_hacking")
MODEL_FILE = "trained_model.zip"
METRICS_FILE = "training_metrics.csv"
OPTIMUM_FILE = "optimum.csv"
TRACE_FILE = "debug_trace.jsonl"
PLOTS_FOLDER = "plots"


def command(
    name: str, parser: Callable[[], argparse.ArgumentParser], execute: Callable[[argparse.Namespace], None]
) -> Callable[..., int]:
    """`main` of a command; a ValueError or OSError is one line on standard error and exit status 2."""

    def main(argv: list[str] | None = None) -> int:
        options = parser().parse_args(argv)
        warnings.showwarning = lambda message, *_, **__: print(
            printable(f"{name}: warning: {message}"), file=sys.stderr
        )
        try:
            execute(options)
        except BrokenPipeError:
            raise  # `leave` knows that the reader had enough
        except (ValueError, OSError) as error:
            print(printable(f"{name}: {' '.join(str(error).split())}"), file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print(f"{name}: interrupted", file=sys.stderr)
            return 130
        return 0

    return main


def progress() -> Progress:
    """A bar on standard error; nothing where that is no terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def seed_list(text: str) -> list[int]:
    """`10000:11000` or `3,5,8` as integers; argparse turns the ValueError into its message."""
    if ":" in text:
        first, last = text.split(":")
        return list(range(int(first), int(last)))
    return [int(part) for part in text.split(",") if part]


def number_list(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part]


def output_folder(out: Path) -> Path:
    """`out` with its folder for plots. Raises ValueError if it cannot be written."""
    try:
        (out / PLOTS_FOLDER).mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"--out {out}: cannot write there ({error.strerror}); choose another folder"
        ) from None
    return out


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--no-trace", action="store_true", help=f"write no {TRACE_FILE}")
    add("--trace-max-mb", type=float, default=TRACE_MAX_MB, metavar="MB", help="limit of the trace")
    add("--trace-envs", type=int, default=1, metavar="N", help="environments or seeds to trace")
