"""How often a run has gone through its training problems: the actor knows their number, the trainer asks.

Groups are numbered in the order in which their problems are drawn, with replacement, over all starts.
"""

from collections.abc import Iterable
from pathlib import Path

from pipelinerl.base.files import write_whole


def _path(output_dir: Path) -> Path:
    return Path(output_dir) / "actor" / "training_problems"


def note_problems(output_dir: Path, count: int) -> None:
    """Write down how many training problems there are; the actor does at its start."""
    write_whole(_path(output_dir), f"{count}\n")


def completed_epochs(output_dir: Path, rollouts: Iterable[str]) -> int:
    """Whole epochs up to the latest of these rollouts, named as in the accounting; 0 for none.

    Asked by the trainer after each step; always 0 in a run without an actor.
    """
    path = _path(output_dir)
    # A trainer alone on recorded data has no actor beside it; one that waits for its first group is no error.
    problems = int(path.read_text(encoding="utf-8")) if path.exists() else 0
    numbers = (name.rpartition("/")[0].rpartition("-")[2] for name in rollouts)
    drawn = max((int(number) + 1 for number in numbers if number.isdecimal()), default=0)
    return drawn // problems if problems else 0
