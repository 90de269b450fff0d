"""The actor's own state at each announced version, so that a resumed run draws and evaluates on from there.

A resume takes the newest snapshot that is not newer than the trainer's restored version.
"""

import json
from pathlib import Path
from typing import Any

from pipelinerl.base.files import write_whole
from pipelinerl.run_state.snapshots import SnapshotFiles

FORMAT = 2


class ActorSnapshots:
    """Small JSON files of the run in `output_dir`; the newest `keep` are kept."""

    def __init__(self, output_dir: Path, keep: int):
        self._files = SnapshotFiles(output_dir, "actor", keep)
        self.versions = self._files.versions

    def save(self, version: int, state: dict[str, Any]) -> None:
        self._files.save(version, json.dumps({"format": FORMAT, "version": version, **state}))

    def restore(self, version: int) -> dict[str, Any] | None:
        """The newest state not newer than `version`, or None; newer ones are removed, they are made anew.

        Raises ValueError for a state of another format.
        """
        self._files.remove_after(version)
        path = self._files.newest(version)
        if path is None:
            return None
        state = json.loads(path.read_text(encoding="utf-8"))
        if state.get("format") != FORMAT:
            raise ValueError(
                f"{path} has format {state.get('format')}, expected {FORMAT}; use force_restart=true"
            )
        return state

    def next_start(self) -> int:
        """How often the actor was started in this folder before; counts this start."""
        # Group ids begin with it: they stay unique over all starts, although numbers are drawn again.
        path = self._files.folder / "starts"
        starts = int(path.read_text()) if path.exists() else 0
        write_whole(path, str(starts + 1))
        return starts
