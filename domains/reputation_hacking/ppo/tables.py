"""`training_metrics.csv`: training writes a row per finished episode, the training curves are drawn from it.

It holds no wall clock, so equal seeds give equal files.
"""

import csv
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from domains.reputation_hacking.game.dynamics import UNKNOWN_SEED

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


def table_rows(
    first: int, timesteps: int, info: dict[str, np.ndarray], without: np.ndarray | None, has_trust: bool
) -> Iterator[tuple[Any, ...]]:
    """The rows of N episodes that ended together, counted from `first`; unknown values stay empty."""
    count = len(info["reward_raw"])
    unknown = [""] * count
    values: dict[str, list[Any]] = {
        **{key: array.tolist() for key, array in info.items()},
        "episode": list(range(first, first + count)),
        "env": list(range(count)),
        "timesteps": [timesteps] * count,
        "reward": info["reward_raw"].tolist(),
        "effort_without": unknown if without is None else without.tolist(),
        "tape_seed": ["" if seed == UNKNOWN_SEED else seed for seed in info["tape_seed"].tolist()],
    }
    if not has_trust:
        values["trust"] = unknown
    return zip(*(values[column] for column in COLUMNS), strict=True)


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
