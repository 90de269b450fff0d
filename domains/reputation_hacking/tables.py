"""`training_metrics.csv`: one row per finished episode, no wall clock, so equal seeds give equal files."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from types import TracebackType

import numpy as np

COLUMNS = (
    "episode",
    "env",
    "timesteps",
    "reward",
    "peer_rating",
    "effort_expected",
    "experienced_effort",
    "learned_expected_effort_before",
    "learned_expected_effort",
    "signal_bias",
    "help_count",
    "signal_count",
    "nothing_count",
    "help_effective",
    "worked_steps",
    "tasks_completed",
    "progress_units",
    "penalty",
    "effort_without",
    "trust",
    "tape_seed",
)


class TrainingTable:
    """Writes rows; flushed once per rollout."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._file.write(",".join(COLUMNS) + "\n")
        self.episodes = 0

    def add(
        self,
        timesteps: int,
        info: dict[str, np.ndarray],
        without: np.ndarray | None,
        has_trust: bool,
    ) -> None:
        """The rows of N episodes that ended together; unknown values stay empty."""
        count = len(info["reward_raw"])
        values: dict[str, list[object]] = {key: array.tolist() for key, array in info.items()}
        values["episode"] = list(range(self.episodes, self.episodes + count))
        values["env"] = list(range(count))
        values["timesteps"] = [timesteps] * count
        values["reward"] = values["reward_raw"]
        values["effort_without"] = [""] * count if without is None else without.tolist()
        values["tape_seed"] = ["" if seed == -1 else seed for seed in values["tape_seed"]]
        if not has_trust:
            values["trust"] = [""] * count
        rows = zip(*(values[column] for column in COLUMNS), strict=True)
        self._file.writelines(",".join(map(_cell, cells)) + "\n" for cells in rows)
        self._file.flush()
        self.episodes += count

    def __enter__(self) -> TrainingTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _cell(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def read_table(path: Path) -> dict[str, np.ndarray]:
    """Columns as float64 arrays, empty cells as NaN.

    A last line that was cut off is dropped with a warning. Raises ValueError, in one line, for a file that is
    missing, empty, without rows or damaged before its end.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path.name} is missing") from None
    lines = list(csv.reader(text.splitlines()))
    if not lines:
        raise ValueError(f"{path.name} is empty")
    header, rows = lines[0], lines[1:]
    if tuple(header) != COLUMNS:
        raise ValueError(f"{path.name} has another header")
    if rows and (len(rows[-1]) != len(COLUMNS) or not text.endswith("\n")):
        warnings.warn(f"{path.name}: the last line is cut off and left out", stacklevel=2)
        rows = rows[:-1]
    if not rows:
        raise ValueError(f"{path.name} has no rows")
    try:
        table = np.array([[float(cell) if cell else np.nan for cell in row] for row in rows])
    except ValueError as error:
        raise ValueError(f"{path.name} is damaged: {error}") from None
    return {name: table[:, index] for index, name in enumerate(COLUMNS)}
