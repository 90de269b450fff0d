"""Reading what a run wrote about itself: metrics as series, status files, evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pipelinerl.base.line_file import read_lines
from pipelinerl.streams import StoredStreamSpec, read_stream, stream_folders


class _Histogram(msgspec.Struct):
    edges: list[float]
    counts: list[float]


_decoder = msgspec.json.Decoder(dict[str, int | float | bool | _Histogram | None])


def metrics_record(line: bytes) -> dict[str, Any]:
    """A line of a `metrics.jsonl`. Raises msgspec.DecodeError for anything but numbers and histograms."""
    return {
        name: msgspec.structs.asdict(value) if isinstance(value, _Histogram) else value
        for name, value in _decoder.decode(line).items()
    }


def read_metrics(output_dir: Path, role: str) -> list[dict[str, Any]]:
    """All metric records of a role in order. Raises DamagedLine."""
    return read_lines(Path(output_dir) / role / "metrics.jsonl", metrics_record)


def standing(trainer: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The trainer's records without those that a resume undid: a step that came again, and all behind it."""
    kept, steps = list[dict[str, Any]](), list[tuple[int, int]]()
    for record in trainer:
        if (made := record.get("stats/completed_steps")) is not None:
            while steps and steps[-1][0] >= made:
                del kept[steps.pop()[1] :]
            steps.append((made, len(kept)))
        kept.append(record)
    return kept


@dataclass(frozen=True)
class Series:
    """One metric over progress: `x` in samples (the record's step), float64 [n] each."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.x)


def series(records: list[dict[str, Any]], name: str) -> Series:
    """The records that have this metric and a step; after a resume, the later record of a step counts."""
    points: dict[float, float] = {}
    for record in records:
        value, step = record.get(name), record.get("step")
        if isinstance(value, (int, float)) and step is not None:
            points[float(step)] = float(value)
    x = np.array(sorted(points), np.float64)
    return Series(x, np.array([points[step] for step in x], np.float64))


def read_status(output_dir: Path, since: float = 0.0) -> dict[str, dict[str, Any]]:
    """The status files of all roles, by the role's folder; those last written before `since` are left out."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(Path(output_dir).glob("*/status.json")):
        try:
            status = msgspec.json.decode(path.read_bytes())
        except (msgspec.DecodeError, FileNotFoundError):
            continue
        if status.get("time", 0.0) >= since:
            found[path.parent.name] = status
    return found


@dataclass(frozen=True)
class Evaluation:
    """One pass over the test problems: values of each metric by problem, None where there is none."""

    version: int
    values: Mapping[str, list[float | None]]
    problems: str = ""
    """Digest of the test problems; empty where none was recorded."""


def read_evaluations(output_dir: Path) -> list[Evaluation]:
    """All passes by version, those of earlier starts too; of a version that was evaluated twice the later.

    A version that was trained before a resume, and not reached again since, is none of the run's.
    """
    by_version: dict[int, Evaluation] = {}
    folders = stream_folders(output_dir)
    for folder in folders:
        spec = StoredStreamSpec(Path(output_dir), "stats_test", folder=folder)
        if spec.directory.is_dir():
            with read_stream(spec) as stream:
                records = [r for r in stream.read_available() if "values" in r and "version" in r]
            for record in records:
                version = int(record["version"])
                by_version[version] = Evaluation(version, record["values"], record.get("problems", ""))
    trained = read_metrics(output_dir, "finetune") if len(folders) > 1 else []
    if len(stands := standing(trained)) < len(trained):
        by_version = {at: found for at, found in by_version.items() if at <= stands[-1].get("step", at)}
    return [evaluation for _, evaluation in sorted(by_version.items())]
