"""What a role keeps of the moment when a weight version was announced: one file per version.

Actor and preprocess write theirs when they hear of a version, the trainer waits for them before it saves a
checkpoint, and a resumed run takes the newest one that is not newer than its checkpoint.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from xxhash import xxh3_64_hexdigest

from pipelinerl.base.files import is_there, write_whole
from pipelinerl.base.waits import Wait
from pipelinerl.streams.errors import CorruptRecord
from pipelinerl.streams.records import Buffer, RecordEncoder, decode_record

log = logging.getLogger(__name__)
State = TypeVar("State")
_LOOK_EVERY_S = 0.002
_LOOK_AT_SHARED_S = 0.05
_REMEDY = "remove it, what it held is then made anew"


class _Kind(NamedTuple):
    """How the snapshots of a role are written."""

    suffix: str
    format: int
    encode: Callable[[Any], Iterable[Buffer]]
    decode: Callable[[bytearray], Any]


def _encode_json(state: Any) -> list[Buffer]:
    text = json.dumps(state).encode()
    return [text, b"\n" + xxh3_64_hexdigest(text).encode()]


def _decode_json(data: bytearray) -> Any:
    text, _, checksum = bytes(data).partition(b"\n")
    if checksum != xxh3_64_hexdigest(text).encode():
        raise ValueError("its checksum differs")
    return json.loads(text)


KINDS = {
    # A line of JSON, and one with its checksum.
    "actor": _Kind(".json", 2, _encode_json, _decode_json),
    # One stream record: `ahead` [[step, samples]], `buffered` [samples], `position` in the actor's stream.
    "preprocess": _Kind(".rec", 2, lambda state: RecordEncoder().encode(state), decode_record),
}
"""The roles that keep their own state by version."""


class Snapshots:
    """Of one role, in `<output_dir>/<role>/state/`; the newest `keep` stay."""

    def __init__(self, output_dir: Path, role: str, keep: int = 1) -> None:
        self._folder = Path(output_dir) / role / "state"
        self._kind, self._keep = KINDS[role], keep

    def path(self, version: int) -> Path:
        return self._folder / f"{version:012d}{self._kind.suffix}"

    def versions(self) -> list[int]:
        """Those that have a file, ascending."""
        # A snapshot that a killed role was writing is called `~...` and is not among them.
        found = [path.stem for path in self._folder.glob(f"*{self._kind.suffix}")]
        return sorted(int(stem) for stem in found if stem.isdigit())

    def save(self, version: int, state: dict[str, Any]) -> None:
        """Write plain data, for preprocess with arrays in it; the file appears whole or not at all."""
        tree = {"format": self._kind.format, "version": version, **state}
        # The trainer saves its checkpoint as soon as it sees the file, so the disk must have all of it.
        write_whole(self.path(version), self._kind.encode(tree), sync=True)
        # The new one is there before an old one goes: a kill in between leaves one too many.
        for old in self.versions()[: -self._keep]:
            self.path(old).unlink()

    def newest(self, version: int, shape: type[State]) -> State | None:
        """The newest state not newer than `version`, or None; `shape` is dict or a msgspec.Struct.

        Raises ValueError for a damaged file or one of another format.
        """
        usable = [found for found in self.versions() if found <= version]
        if not usable:
            return None
        path, expected = self.path(usable[-1]), self._kind.format
        try:
            state: dict[str, Any] = self._kind.decode(bytearray(path.read_bytes()))
            if state.get("format") == expected:
                return msgspec.convert(state, shape)
        except (CorruptRecord, ValueError, msgspec.ValidationError) as error:
            raise ValueError(f"{path} is damaged ({error}); {_REMEDY}") from error
        raise ValueError(f"{path} has format {state.get('format')}, expected {expected}; {_REMEDY}")

    def restore(self, version: int, shape: type[State]) -> State | None:
        """`newest` for a run that goes on from `version`; newer ones are removed, they are made anew."""
        for newer in self.versions():
            # It is of an update that the checkpoint lacks: going on from it would skip what is trained anew.
            if newer > version:
                self.path(newer).unlink()
        return self.newest(version, shape)

    def next_start(self, attempt: int = 0, recorded: bool = False) -> int:
        """How often the role was started in this folder before; counts this start.

        `attempt` is how often the launcher was, `recorded` whether an earlier start left records. Where the
        file is damaged, or removed from beside them, nothing that an earlier start named may be named again:
        then the launcher's number counts, with a warning.
        """
        path = self._folder / "starts"
        try:
            starts = self._starts(path, recorded)
        except (ValueError, OSError) as error:
            starts = max(attempt, 1)
            log.warning("%s: %s; starts are counted as the launcher counts them (%d)", path, error, starts)
        # Counted before anything is named after it: a kill here skips a number, and never uses one twice.
        write_whole(path, f"{starts + 1} {xxh3_64_hexdigest(str(starts + 1).encode())}\n")
        return starts

    def _starts(self, path: Path, recorded: bool) -> int:
        if not path.exists():
            if recorded:
                raise ValueError("removed")
            return 0
        number, _, checksum = path.read_text(encoding="utf-8").strip().partition(" ")
        if not number.isascii() or not number.isdigit() or checksum != xxh3_64_hexdigest(number.encode()):
            raise ValueError("damaged")
        return int(number)


def wait_for_snapshots(
    output_dir: Path, roles: Iterable[str], version: int, deadline_s: float, shared: bool = False
) -> None:
    """Until each role has written its snapshot of an announced version; raises WaitExpired.

    `shared`: other hosts may write them.
    """
    there, look_every_s = (is_there, _LOOK_AT_SHARED_S) if shared else (Path.exists, _LOOK_EVERY_S)
    for role in roles:
        path = Snapshots(output_dir, role).path(version)
        with Wait(f"the snapshot of {role} at version {version}", deadline_s) as wait:
            # A role writes within milliseconds of the announcement, so there is no watch to set up for it.
            while not there(path):
                wait.check(f"{path} is not there")
                time.sleep(look_every_s)


def replayed_texts(output_dir: Path, version: int, step: int) -> int:
    """Samples with which preprocess goes on in a run resumed at `version` and `step`."""
    # A run that begins at version 0 has a snapshot here only from an earlier start that it does not resume.
    held = Snapshots(output_dir, "preprocess").newest(version, dict) if version else None
    if held is None:
        return 0
    return len(held["buffered"]) + sum(len(samples) for number, samples in held["ahead"] if number >= step)
