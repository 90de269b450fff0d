"""Where each start of a run begins in the streams that an earlier start may have left behind.

The trainer writes it before it announces the first version, and nobody samples before that announcement; so
everything behind the ends that it measured belongs to this start. Preprocess and actor read the last point.
All points together say which records stand (`Standing`): whoever shows people a run asks it.
"""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from pipelinerl.base.line_file import LineFile, read_lines
from pipelinerl.streams import EARLIEST, SingleStreamSpec, read_stream

_CHUNK = 64


def _path(output_dir: Path) -> Path:
    return Path(output_dir) / "finetune" / "resume_points.jsonl"


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Version (in samples) and optimizer step that training starts from, and what is there already."""

    version: int
    step: int
    actor_position: int = 0
    """The first group for preprocess to read."""
    replayed: int = 0
    """Samples that preprocess has kept over a resume."""
    attempt: int = 0
    """Earlier starts of the launcher; `streams_N` holds the streams of attempt N."""
    time: float = field(default_factory=lambda: round(time.time(), 3))  # as metrics have it
    """Seconds since 1970."""

    def write(self, output_dir: Path) -> None:
        """Append it to those of earlier starts; the others read it once a version is announced."""
        with LineFile(_path(output_dir)) as file:
            file.append(msgspec.json.encode(self))

    @staticmethod
    def read(output_dir: Path) -> "ResumePoint":
        """The last one, which is there once a version is announced. Raises ValueError where it is not."""
        try:
            return _points(output_dir)[-1]
        except (OSError, ValueError, IndexError) as error:
            # No default: an actor that began at 0 beside a resumed trainer would overrun the lag bound.
            path = _path(output_dir)
            raise ValueError(f"{path} is missing or damaged ({error}); start the run again") from error


def _points(output_dir: Path) -> list[ResumePoint]:
    return read_lines(_path(output_dir), msgspec.json.Decoder(ResumePoint).decode)


@dataclass(frozen=True)
class Standing:
    """Which records of a run stand: a resume undoes what earlier starts recorded beyond its version.

    A start that ended before it wrote its point undid nothing yet.
    """

    points: tuple[ResumePoint, ...] = ()

    @classmethod
    def read(cls, output_dir: Path) -> Self:
        """Of the run in `output_dir`; everything stands where no trainer ran. Raises DamagedLine."""
        return cls(tuple(_points(output_dir)))

    def began(self, attempt: float) -> ResumePoint:
        """Where training began in an attempt; at 0 where that is not recorded."""
        return next((one for one in reversed(self.points) if one.attempt <= attempt), ResumePoint(0, 0))

    def has(self, version: float, *, time: float = math.inf, attempt: float = math.inf) -> bool:
        """Whether a record of `version` (samples trained on by its end) stands.

        When it was written is told by `time` (seconds since 1970), or by the `attempt` that wrote it.
        """
        later = (one for one in self.points if one.time > time or one.attempt > attempt)
        return all(version <= one.version for one in later)


def stream_end(spec: SingleStreamSpec) -> int:
    """Number of complete records that a partition has had."""
    # Records are read and not only counted, so that a damaged one is found before anything is trained on. An
    # incomplete one at the end, of a writer that was killed, does not count and is never read.
    with read_stream(spec, EARLIEST) as reader:
        while reader.read_available(_CHUNK):
            pass
        return reader.position
