"""Reading what a run wrote about itself: metrics as series, status files, evaluations."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pipelinerl.base.line_file import read_lines
from pipelinerl.run_state.resume_point import Standing
from pipelinerl.streams import StoredStreamSpec, attempt_of, read_stream, stream_folders


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


def read_metrics(output_dir: Path, role: str, undone: bool = False) -> list[dict[str, Any]]:
    """The metric records of a role in order; `undone`: with those that a resume undid. Raises DamagedLine."""
    records = read_lines(Path(output_dir) / role / "metrics.jsonl", metrics_record)
    stands = Standing() if undone else Standing.read(output_dir)
    return [r for r in records if stands.has(r.get("step", 0), time=r.get("time", math.inf))]


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


def evaluated_rollouts(output_dir: Path) -> int:
    """How many rollouts have a value in any pass, also in one that was repeated or undone."""
    records = (record for _, record in _evaluation_records(output_dir))
    return sum(max(map(len, record["values"].values()), default=0) for record in records)


def _evaluation_records(output_dir: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every recorded pass, behind the folder of the start that made it."""
    for folder in stream_folders(output_dir):
        spec = StoredStreamSpec(Path(output_dir), "stats_test", folder=folder)
        if spec.directory.is_dir():
            with read_stream(spec) as stream:
                records = stream.read_available()
            yield from ((folder, r) for r in records if "values" in r and "version" in r)


def read_evaluations(output_dir: Path) -> list[Evaluation]:
    """All passes by version, those of earlier starts too; of a version that was evaluated twice the later.

    A pass over a version that a later resume undid is none of the run's.
    """
    by_version, stands = dict[int, Evaluation](), Standing.read(output_dir)
    for folder, record in _evaluation_records(output_dir):
        if stands.has(version := int(record["version"]), attempt=attempt_of(folder)):
            by_version[version] = Evaluation(version, record["values"], record.get("problems", ""))
    return [evaluation for _, evaluation in sorted(by_version.items())]
