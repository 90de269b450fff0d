"""What preprocess held when a weight version was announced, so that a resumed run goes on with it.

A snapshot holds the texts that no announced update had consumed: those of steps written ahead of the
trainer, by step, and those in the buffer, in order. It is taken for the versions from which a checkpoint can
follow, as one stream record per file: `<output_dir>/preprocess/state/<version>.rec`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from pipelinerl.preprocess.ready import ReadyText
from pipelinerl.preprocess.settings import PreprocessSettings
from pipelinerl.run_state.resume_point import ResumePoint
from pipelinerl.run_state.snapshots import Snapshots

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

    def save(self, snapshots: Snapshots) -> None:
        state = {
            "ahead": [[step, [_tree(text) for text in texts]] for step, texts in self.ahead],
            "buffered": [_tree(text) for text in self.buffered],
            "position": self.position,
        }
        snapshots.save(self.version, state)

    @classmethod
    def of(cls, state: dict[str, Any] | None) -> Self | None:
        """What `save` wrote, as a snapshot has it."""
        if state is None:
            return None
        ahead = [(int(step), [ReadyText(**text) for text in texts]) for step, texts in state["ahead"]]
        buffered = [ReadyText(**text) for text in state["buffered"]]
        return cls(int(state["version"]), ahead, buffered, int(state["position"]))

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


class Keeper:
    """Takes snapshots as versions are announced, and gives back what the last start held."""

    def __init__(self, settings: PreprocessSettings, point: ResumePoint) -> None:
        self._settings, self._point = settings, point
        self._snapshots = Snapshots(settings.output_dir, "preprocess", KEPT)
        self._seen = point.version
        self._ahead: deque[tuple[int, list[ReadyText]]] = deque()

    def restore(self) -> Held | None:
        """What was held at the version from which the run goes on."""
        # At version 0 there is nothing to go on with, but what an earlier start kept has to go.
        held = Held.of(self._snapshots.restore(self._point.version))
        return held if self._point.version else None

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
            settings.texts_per_update,
            settings.save_checkpoint_steps,
            settings.also_save_steps,
            settings.last_step,
        ):
            Held(version, list(self._ahead), list(buffered), position).save(self._snapshots)


def fitting(texts: Sequence[ReadyText], seq_length: int) -> tuple[list[ReadyText], list[ReadyText]]:
    """Texts that still fit into a row, and those that do not since the configuration was changed."""
    fit = [text for text in texts if len(text.input_ids) <= seq_length]
    return fit, [text for text in texts if len(text.input_ids) > seq_length]


def _tree(text: ReadyText) -> dict[str, Any]:
    return {name: getattr(text, name) for name in _FIELDS}
