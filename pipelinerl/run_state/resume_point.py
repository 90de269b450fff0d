"""Where this start of a run begins in the streams that an earlier start may have left behind.

The trainer writes it before it announces the first version, and nobody samples before that announcement; so
everything behind the ends that it measured belongs to this start. Preprocess and actor read it.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from pipelinerl.base.files import write_whole
from pipelinerl.streams import EARLIEST, SingleStreamSpec, read_stream

_CHUNK = 64


def _path(output_dir: Path) -> Path:
    return Path(output_dir) / "finetune" / "resume_point.json"


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Version (in samples) and optimizer step that training starts from, and what is there already."""

    version: int
    step: int
    actor_position: int = 0
    """The first group for preprocess to read."""
    replayed: int = 0
    """Samples that preprocess has kept over a resume."""

    def write(self, output_dir: Path) -> None:
        # Whole or not at all: actor and preprocess read it as soon as a version is announced.
        write_whole(_path(output_dir), json.dumps(asdict(self)))

    @classmethod
    def read(cls, output_dir: Path) -> Self:
        """Raises ValueError when it is not there, which it is once a version has been announced."""
        path = _path(output_dir)
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, TypeError, json.JSONDecodeError) as error:
            # No default: an actor that began at 0 beside a resumed trainer would overrun the lag bound.
            raise ValueError(f"{path} is missing or damaged ({error}); start the run again") from error


def stream_end(spec: SingleStreamSpec) -> int:
    """Number of complete records that a partition has had."""
    # Records are read and not only counted, so that a damaged one is found before anything is trained on. An
    # incomplete one at the end, of a writer that was killed, does not count and is never read.
    with read_stream(spec, EARLIEST) as reader:
        while reader.read_available(_CHUNK):
            pass
        return reader.position
