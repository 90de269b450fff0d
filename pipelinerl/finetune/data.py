"""Constants and files of samples, shared by preprocess and trainer; no torch, no pandas."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from pipelinerl.base.line_file import read_lines
from pipelinerl.rollouts import MASKED_TOKEN_ID

__all__ = ["MASKED_TOKEN_ID", "load_samples", "save_samples"]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written to a samples file")


def save_samples(samples: Iterable[dict[str, Any]], path: str | Path) -> int:
    """Write samples as JSON lines; returns how many."""
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for sample in samples:
            file.write(json.dumps(sample, default=_plain) + "\n")
            count += 1
    return count


def load_samples(path: str | Path) -> list[dict[str, Any]]:
    """Read what `save_samples` wrote, without an incomplete last line; DamagedLine names any other."""
    return read_lines(Path(path), json.loads)
