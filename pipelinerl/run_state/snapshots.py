"""What a role keeps of the moment when a weight version was announced: one file per version.

Actor and preprocess write theirs when they hear of a version, the trainer waits for them before it saves a
checkpoint, and a resumed run takes the newest one that is not newer than its checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipelinerl.base.files import write_whole
from pipelinerl.base.waits import waiting
from pipelinerl.streams.errors import CorruptRecord
from pipelinerl.streams.records import decode_record

SUFFIXES = {"actor": ".json", "preprocess": ".rec"}
"""Roles that keep their own state by version, in `<role>/state/`, and the kind of file."""
_LOOK_EVERY_S = 0.002


class SnapshotFiles:
    """`<output_dir>/<role>/state/<version>.<suffix>`, the newest `keep` of them."""

    def __init__(self, output_dir: Path, role: str, keep: int) -> None:
        self.folder = output_dir / role / "state"
        self._suffix, self._keep = SUFFIXES[role], keep

    def path(self, version: int) -> Path:
        return self.folder / f"{version:012d}{self._suffix}"

    def versions(self) -> list[int]:
        """Those that have a file, ascending."""
        return sorted(int(path.stem) for path in self.folder.glob(f"*{self._suffix}") if path.stem.isdigit())

    def save(self, version: int, data: str | Iterable[bytes | bytearray | memoryview]) -> None:
        """The file appears whole or not at all; the oldest beyond `keep` are removed."""
        write_whole(self.path(version), data, sync=True)
        for old in self.versions()[: -self._keep]:
            self.path(old).unlink()

    def newest(self, version: int) -> Path | None:
        """The newest snapshot not newer than `version`, or None."""
        usable = [found for found in self.versions() if found <= version]
        return self.path(usable[-1]) if usable else None

    def remove_after(self, version: int) -> None:
        """Remove snapshots of versions that a resumed run makes anew."""
        for newer in (found for found in self.versions() if found > version):
            self.path(newer).unlink()


def wait_for_snapshots(output_dir: Path, roles: Iterable[str], version: int, deadline_s: float) -> None:
    """Until each role has written its snapshot of an announced version; raises WaitExpired."""
    for role in roles:
        path = SnapshotFiles(output_dir, role, 1).path(version)
        with waiting(f"the snapshot of {role} at version {version}", deadline_s) as wait:
            while not path.exists():
                wait.check(f"{path} is not there")
                time.sleep(_LOOK_EVERY_S)


def read_preprocess_snapshot(path: Path, expected_format: int) -> dict[str, Any]:
    """The record in a snapshot of preprocess. Raises ValueError for a damaged one or another format."""
    try:
        tree: dict[str, Any] = decode_record(bytearray(path.read_bytes()))
    except CorruptRecord as error:
        raise ValueError(f"{path} is damaged ({error}); remove it, its texts are then made anew") from error
    if tree.get("format") != expected_format:
        raise ValueError(f"{path} has format {tree.get('format')}, expected {expected_format}; remove it")
    return tree


PREPROCESS_FORMAT = 2
"""Of the record that preprocess keeps: `ahead` [[step, texts]], `buffered` [texts], `position`."""


def replayed_texts(output_dir: Path, version: int, step: int) -> int:
    """Texts with which preprocess goes on in a run resumed at `version` and `step`."""
    path = SnapshotFiles(output_dir, "preprocess", 1).newest(version) if version else None
    if path is None:
        return 0
    tree = read_preprocess_snapshot(path, PREPROCESS_FORMAT)
    return len(tree["buffered"]) + sum(len(texts) for number, texts in tree["ahead"] if number >= step)
