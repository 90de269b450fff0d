"""How often a run has gone through its training problems: the actor knows their number, the trainer asks.

Groups are numbered in the order in which their problems are drawn, with replacement, over all starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def _path(output_dir: Path) -> Path:
    return Path(output_dir) / "actor" / "training_problems"


def note_problems(output_dir: Path, count: int) -> None:
    """Write down how many training problems there are."""
    path = _path(output_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".partial")
    beside.write_text(f"{count}\n")
    os.replace(beside, path)


class Epochs:
    """Asked by the trainer after each step; always 0 in a run without an actor."""

    def __init__(self, output_dir: Path) -> None:
        self._path, self._problems = _path(output_dir), 0

    def completed(self, rollouts: Iterable[str]) -> int:
        """Whole epochs up to the latest of these rollouts, named as in the books; 0 for none."""
        if not self._problems and self._path.exists():
            self._problems = int(self._path.read_text())
        numbers = (name.rpartition("/")[0].rpartition("-")[2] for name in rollouts)
        drawn = max((int(number) + 1 for number in numbers if number.isdecimal()), default=0)
        return drawn // self._problems if self._problems else 0
