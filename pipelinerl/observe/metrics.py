"""A role's metrics: JSON lines in `<output_dir>/<role>/metrics.jsonl`, which the wandb process follows.

Only numbers pass, so that no text of a private corpus can reach either by mistake.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pipelinerl.base.closing import Closing
from pipelinerl.base.line_file import LineFile

MetricValue = int | float | bool | Mapping[str, list[float]]


def histogram(values: Any, edges: Any, weights: Any = None) -> dict[str, list[float]]:
    """A histogram as a metric: `edges` (n + 1) and `counts` (n); values outside the edges are not counted.

    `weights` says how often each value counts; None: once.
    """
    counts, bounds = np.histogram(np.asarray(values), bins=np.asarray(edges), weights=weights)
    return {"edges": bounds.astype(float).tolist(), "counts": counts.astype(float).tolist()}


def _clean(name: str, value: Any) -> MetricValue:
    # np.float64 is a float to Python, but not to the encoder.
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0:
        value = value.item()
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping) and set(value) == {"edges", "counts"}:
        return {k: [float(v) for v in value[k]] for k in ("edges", "counts")}
    raise TypeError(f"metric {name} is a {type(value).__name__}; only numbers and histograms are logged")


class MetricsWriter(Closing):
    """Writes one role's metrics."""

    def __init__(self, output_dir: Path, role: str) -> None:
        self.path = Path(output_dir) / role / "metrics.jsonl"
        self._file = LineFile(self.path)
        self._encoder = msgspec.json.Encoder()

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Append one line of metrics; `step` is the role's own measure of progress (samples or steps).

        Raises TypeError for a value that is neither a number nor a histogram.
        """
        clean = {name: _clean(name, value) for name, value in metrics.items()}
        head: dict[str, Any] = {"time": round(time.time(), 3)}
        if step is not None:
            head["step"] = int(step)
        self._file.append(self._encoder.encode(head | clean))

    def close(self) -> None:
        self._file.close()
