"""Files of samples, by the names that programs written for upstream know; no torch, no pandas."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from pipelinerl.base.line_file import read_lines
from pipelinerl.rollouts import MASKED_TOKEN_ID, TrainingText

__all__ = ["MASKED_TOKEN_ID", "load_samples", "save_samples"]


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written to a samples file")


def save_samples(samples: Iterable[TrainingText], path: str | Path) -> int:
    """Write samples as JSON lines; returns how many."""
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for sample in samples:
            file.write(json.dumps(sample.to_record(), default=_listed) + "\n")
            count += 1
    return count


def load_samples(path: str | Path) -> list[TrainingText]:
    """Read what `save_samples`, or upstream's, wrote; an incomplete last line is left out and said.

    Raises FileNotFoundError, and DamagedLine for a line that is no sample.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"{path}: no such file of samples")
    return read_lines(Path(path), TrainingText.model_validate_json)
