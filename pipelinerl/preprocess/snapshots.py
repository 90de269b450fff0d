"""What preprocess held when a weight version was announced, so that a resumed run goes on with it.

A snapshot holds the texts that no announced update had consumed: those of steps written ahead of the
trainer, by step, and those in the buffer, in order. It is taken for the versions from which a checkpoint can
follow, as one stream record per file: `<output_dir>/preprocess/state/<version>.rec`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pipelinerl.preprocess.ready import ReadyText
from pipelinerl.preprocess.settings import PreprocessSettings
from pipelinerl.session import Session, snapshot_path
from pipelinerl.streams.errors import CorruptRecord
from pipelinerl.streams.records import RecordEncoder, decode_record

FORMAT = 1
KEPT = 4
"""A checkpoint may be saved some versions after the snapshot that belongs to it."""
_FIELDS = tuple(field.name for field in fields(ReadyText))


@dataclass(frozen=True)
class Held:
    """Texts that wait to be trained on."""

    version: int
    ahead: list[tuple[int, list[ReadyText]]]
    """Steps written for the trainer and not part of `version`, oldest first."""
    buffered: list[ReadyText]
    position: int
    """Groups read from the actor's stream."""

    def texts_from(self, step: int) -> list[ReadyText]:
        """What is left for a trainer that goes on with `step`, oldest first."""
        written = [text for number, texts in self.ahead if number >= step for text in texts]
        return [*written, *self.buffered]


def can_be_resumed_from(
    version: int, texts_per_step: int, interval: int, every: int, also: Iterable[int], last: int
) -> bool:
    """Whether a checkpoint is saved at `version` or before the next one, `interval` texts later."""
    first = -(-version // texts_per_step)
    steps = range(first, first + max(1, -(-interval // texts_per_step)))
    return any(step % every == 0 or step == last or step in set(also) for step in steps)


class Snapshots:
    """The files of one run."""

    def __init__(self, output_dir: Path) -> None:
        self._output_dir = output_dir
        self._folder = output_dir / "preprocess" / "state"

    def save(self, held: Held) -> None:
        """The file appears whole or not at all; the newest KEPT stay."""
        self._folder.mkdir(parents=True, exist_ok=True)
        tree = {
            "format": FORMAT,
            "version": held.version,
            "ahead": [[step, [_tree(text) for text in texts]] for step, texts in held.ahead],
            "buffered": [_tree(text) for text in held.buffered],
            "position": held.position,
        }
        path = self._path(held.version)
        beside = path.with_name(f"~{path.name}")
        with beside.open("wb") as file:
            file.writelines(RecordEncoder().encode(tree))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        for old in self._versions()[:-KEPT]:
            self._path(old).unlink()

    def restore(self, version: int) -> Held | None:
        """The newest snapshot not newer than `version`, or None. Raises ValueError for a damaged one."""
        usable = [found for found in self._versions() if found <= version]
        if not usable:
            return None
        path = self._path(usable[-1])
        try:
            tree = decode_record(bytearray(path.read_bytes()))
        except CorruptRecord as error:
            raise ValueError(
                f"{path} is damaged ({error}); remove it, its texts are then made anew"
            ) from error
        if tree.get("format") != FORMAT:
            raise ValueError(f"{path} has format {tree.get('format')}, expected {FORMAT}; remove it")
        ahead = [(int(step), [ReadyText(**text) for text in texts]) for step, texts in tree["ahead"]]
        buffered = [ReadyText(**text) for text in tree["buffered"]]
        return Held(int(tree["version"]), ahead, buffered, int(tree["position"]))

    def forget_after(self, version: int) -> None:
        """Remove what belongs to a future that did not come."""
        for newer in (found for found in self._versions() if found > version):
            self._path(newer).unlink()

    def _versions(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob("*.rec") if path.stem.isdigit())

    def _path(self, version: int) -> Path:
        return snapshot_path(self._output_dir, "preprocess", version)


class Keeper:
    """Takes snapshots as versions are announced, and gives back what the last start held."""

    def __init__(self, settings: PreprocessSettings, session: Session) -> None:
        self._settings, self._session = settings, session
        self._files = Snapshots(settings.output_dir)
        self._seen = session.version
        self._ahead: deque[tuple[int, list[ReadyText]]] = deque()

    def restore(self) -> Held | None:
        """What was held at the version from which the run goes on."""
        self._files.forget_after(self._session.version)
        return self._files.restore(self._session.version) if self._session.version else None

    def written(self, step: int, texts: list[ReadyText]) -> None:
        """A step went to the trainer; a stand-in for one would never be done with it."""
        if self._settings.has_trainer:
            self._ahead.append((step, texts))

    def announced(self, version: int | None, buffered: Iterable[ReadyText], position: int) -> None:
        """The newest version is `version`; call it before taking in what may have followed it."""
        if version is None or version <= self._seen:
            return
        self._seen = version
        settings = self._settings
        size = settings.texts_per_step
        while self._ahead and self._ahead[0][0] < version // size:
            self._ahead.popleft()
        if can_be_resumed_from(
            version,
            size,
            settings.weight_update_interval,
            settings.save_checkpoint_steps,
            settings.also_save_steps,
            settings.last_step,
        ):
            self._files.save(Held(version, list(self._ahead), list(buffered), position))


def replayed_texts(output_dir: Path, version: int, step: int) -> int:
    """Texts with which preprocess goes on in a run resumed at `version` and `step`."""
    held = Snapshots(output_dir).restore(version) if version else None
    return 0 if held is None else len(held.texts_from(step))


def fitting(texts: Sequence[ReadyText], seq_length: int) -> tuple[list[ReadyText], list[ReadyText]]:
    """Texts that still fit into a row, and those that do not since the configuration was changed."""
    fit = [text for text in texts if len(text.input_ids) <= seq_length]
    return fit, [text for text in texts if len(text.input_ids) > seq_length]


def _tree(text: ReadyText) -> dict[str, Any]:
    return {name: getattr(text, name) for name in _FIELDS}
