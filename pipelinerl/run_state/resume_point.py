"""Where this start of a run begins in the streams that an earlier start may have left behind.

The trainer measures the ends of its inputs before it announces the first version, and nobody samples
before that announcement; so everything behind those ends belongs to this start. No torch here.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelinerl.base.files import write_whole
from pipelinerl.streams import EARLIEST, SingleStreamSpec, read_stream

_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Session:
    """Version (in texts) and optimizer step that training starts from, and what is there already."""

    version: int
    step: int
    actor_position: int = 0
    """The first group for preprocess to read."""
    replayed: int = 0
    """Texts that preprocess has kept over a resume."""


def session_path(output_dir: Path) -> Path:
    return output_dir / "finetune" / "session.json"


def write_session(output_dir: Path, session: Session) -> None:
    """The file appears whole or not at all."""
    write_whole(session_path(output_dir), json.dumps(asdict(session)))


def read_session(output_dir: Path) -> Session:
    """Raises ValueError when the trainer has not written it (it does so before its first announcement)."""
    path = session_path(output_dir)
    try:
        return Session(**json.loads(path.read_text()))
    except (OSError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is missing or damaged ({error}); start the run again") from error


def stream_end(spec: SingleStreamSpec, offset: int = 0) -> int:
    """Number of complete records that a partition has had."""
    with read_stream(spec, offset or EARLIEST) as reader:
        while reader.read_available(_CHUNK):
            pass
        return reader.position
