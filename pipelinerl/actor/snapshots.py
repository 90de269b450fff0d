"""The actor's own state at each announced version, so that a resumed run draws and evaluates on from there.

A resume takes the newest snapshot that is not newer than the trainer's restored version.
"""

import json
import os
from pathlib import Path
from typing import Any

FORMAT = 2


class Snapshots:
    """Small JSON files `<folder>/<version>.json`; the newest `keep` are kept."""

    def __init__(self, folder: Path, keep: int):
        self.folder, self.keep = folder, keep
        folder.mkdir(parents=True, exist_ok=True)

    def versions(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdigit())

    def save(self, version: int, state: dict[str, Any]) -> None:
        path = self._path(version)
        beside = path.with_name(f"~{path.name}")
        with beside.open("w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, "version": version, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        for old in self.versions()[: -self.keep]:
            self._path(old).unlink()

    def restore(self, version: int) -> dict[str, Any] | None:
        """The newest state not newer than `version`, or None; newer ones are removed, their future is void.

        Raises ValueError for a state of another format.
        """
        versions = self.versions()
        for newer in (v for v in versions if v > version):
            self._path(newer).unlink()
        usable = [v for v in versions if v <= version]
        if not usable:
            return None
        path = self._path(usable[-1])
        state = json.loads(path.read_text(encoding="utf-8"))
        if state.get("format") != FORMAT:
            raise ValueError(
                f"{path} has format {state.get('format')}, expected {FORMAT}; use force_restart=true"
            )
        return state

    def next_start(self) -> int:
        """How often the actor was started in this folder before; counts this start."""
        path = self.folder / "starts"
        starts = int(path.read_text()) if path.exists() else 0
        beside = path.with_name("~starts")
        beside.write_text(str(starts + 1))
        beside.replace(path)
        return starts

    def _path(self, version: int) -> Path:
        return self.folder / f"{version:012d}.json"
