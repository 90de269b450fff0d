"""Where this start of a run begins in the streams that an earlier start may have left behind.

The trainer measures the ends of its inputs before it announces the first version, and nobody samples
before that announcement; so everything behind those ends belongs to this start. No torch here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelinerl.observe.waits import waiting
from pipelinerl.streams import EARLIEST, SingleStreamSpec, read_stream

_CHUNK = 64
_LOOK_EVERY_S = 0.002


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
    path = session_path(output_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name("~session.json")
    beside.write_text(json.dumps(asdict(session)))
    os.replace(beside, path)


def read_session(output_dir: Path) -> Session:
    """Raises ValueError when the trainer has not written it (it does so before its first announcement)."""
    path = session_path(output_dir)
    try:
        return Session(**json.loads(path.read_text()))
    except (OSError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is missing or damaged ({error}); start the run again") from error


SNAPSHOTS = {"actor": ".json", "preprocess": ".rec"}
"""Roles that keep their own state by version, in `<role>/state/`, and the kind of file."""


def snapshot_path(output_dir: Path, role: str, version: int) -> Path:
    """What `role` keeps of the moment when `version` was announced."""
    return output_dir / role / "state" / f"{version:012d}{SNAPSHOTS[role]}"


def wait_for_snapshots(output_dir: Path, roles: Iterable[str], version: int, deadline_s: float) -> None:
    """Until each role has written its snapshot of an announced version; raises WaitExpired."""
    for role in roles:
        path = snapshot_path(output_dir, role, version)
        with waiting(f"the snapshot of {role} at version {version}", deadline_s) as wait:
            while not path.exists():
                wait.check(f"{path} is not there")
                time.sleep(_LOOK_EVERY_S)


def stream_end(spec: SingleStreamSpec, offset: int = 0) -> int:
    """Number of complete records that a partition has had."""
    with read_stream(spec, offset or EARLIEST) as reader:
        while reader.read_available(_CHUNK):
            pass
        return reader.position
