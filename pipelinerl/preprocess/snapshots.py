"""What preprocess held when a weight version was announced, so that a resumed run goes on with it.

A snapshot holds the samples that no announced update had consumed: those of steps written ahead of the
trainer, by step, and those in the buffer, in order. It is taken for the versions from which a checkpoint can
follow, as one stream record per file: `<output_dir>/preprocess/state/<version>.rec`. Called by the loop.
"""

from collections import deque
from collections.abc import Iterable
from pathlib import Path

import msgspec

from pipelinerl.config import Config
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.run_state.resume_point import ResumePoint
from pipelinerl.run_state.snapshots import Snapshots

KEPT = 4
"""A checkpoint may be saved some versions after the snapshot that belongs to it."""


class Held(msgspec.Struct, frozen=True, eq=False):
    """Samples that wait to be trained on."""

    version: int
    ahead: list[tuple[int, list[Sample]]]
    """Steps written for the trainer and not part of `version`, oldest first."""
    buffered: list[Sample]
    position: int
    """Groups read from the actor's stream."""

    def samples_from(self, step: int) -> list[Sample]:
        """What is left for a trainer that goes on with `step`, oldest first."""
        written = [sample for number, samples in self.ahead if number >= step for sample in samples]
        return [*written, *self.buffered]


def can_be_resumed_from(step: int, cfg: Config) -> bool:
    """Whether a checkpoint is saved after `step` steps, which made a version, or before the next version."""
    derived, tune = cfg.derived, cfg.finetune
    if tune.max_epochs is not None:
        return True  # any step may turn out to be the last, and that one is saved
    steps = range(step, step + derived.texts_per_update // derived.texts_per_step)
    saved = {tune.last_step, *tune.also_save_steps}
    return any(each % tune.save_checkpoint_steps == 0 or each in saved for each in steps)


class Keeper:
    """Takes snapshots as versions are announced, and gives back what the last start held."""

    def __init__(self, cfg: Config, output_dir: Path, point: ResumePoint) -> None:
        self._cfg, self._point = cfg, point
        self._snapshots = Snapshots(output_dir, "preprocess", KEPT)
        self._seen = point.version
        self._ahead: deque[tuple[int, list[Sample]]] = deque()

    @property
    def resumes_from(self) -> int:
        """The version from which the run goes on; 0 for a run that begins."""
        return self._point.version

    def restore(self) -> Held | None:
        """What was held at the version from which the run goes on. Raises ValueError for a damaged file."""
        held = self._snapshots.restore(self._point.version, Held)
        # At version 0 there is nothing to go on with, but what an earlier start kept had to go.
        return held if self._point.version else None

    def written(self, step: int, samples: list[Sample]) -> None:
        """A step went to the trainer; a stand-in for one would never be done with it."""
        if self._cfg.jobs_of("finetune"):
            self._ahead.append((step, samples))

    def announced(self, version: int | None, buffered: Iterable[Sample], position: int) -> None:
        """The newest version is `version`; call it before taking in what may have followed it."""
        if version is None or version <= self._seen:
            return
        self._seen = version
        # Counted from this start: steps of an earlier one may have had another number of samples.
        done = self._point.step + (version - self._point.version) // self._cfg.derived.texts_per_step
        while self._ahead and self._ahead[0][0] < done:
            self._ahead.popleft()
        if can_be_resumed_from(done, self._cfg):
            state = {"ahead": list(self._ahead), "buffered": list(buffered), "position": position}
            self._snapshots.save(version, state)
