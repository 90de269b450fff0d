"""What the page reads of a run's folder: groups of rollouts, what training made of them, how they ended.

Everything lies on disk: `actor` and `training_data`, or, where those do not stay (redis, trimmed streams),
`rollouts`, which preprocess writes for people. Streams that a resume has set aside are read before those of
the last start, without what the resume undid. Records are handed out one at a time, because a run may hold
more than memory does.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from omegaconf import OmegaConf

from pipelinerl.config.files import config_path, read_started
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding
from pipelinerl.rollouts import MASKED_TOKEN_ID
from pipelinerl.run_state.accounting import RolloutAccounting, rollout_id
from pipelinerl.run_state.resume_point import ResumePoint, Standing
from pipelinerl.streams import (
    EARLIEST,
    KEPT_TOPIC,
    CorruptRecord,
    StoredStreamSpec,
    attempt_of,
    stream_folders,
)
from pipelinerl.streams.files import FilesBackend
from pipelinerl.streams.segments import list_segments

Record = Mapping[str, Any]
TextId = tuple[str, int, int]
"""Group, rollout and step of a text."""
_LEFT_OUT: dict[str, Any] = {
    "text": "",
    "n_predicted": 0,
    "reward": 0.0,
    "weight_versions": (),
    "finished": False,
    "situation": None,
    "position": "end",
    "role": None,
    "loss_weight": 1.0,
    "masked": False,
    "finish_reason": None,
}
"""What foreign writers of the stream `actor` may leave out."""
_EVALUATION = re.compile(r"^(.*)-eval(\d+)-(\d+)$", re.DOTALL)


@dataclass(slots=True)
class Trained:
    """What an optimizer step made of one text."""

    step: int
    advantage: float
    loss_weight: float
    version: int
    """Texts that had been trained on when the step began."""
    ref_logprobs: np.ndarray | None = None
    """float32 over the sampled tokens; None where they are those of the sampling weights."""


class Measured(msgspec.Struct):
    """What the actor measured of one rollout of training."""

    index: int
    reward: float | None
    success: float | None
    seconds: float
    retries: int
    dataset: str | None
    domain: str | None
    ending: str
    reason: str
    problem: int = 0


class _MeasuredGroup(msgspec.Struct):
    """A record of `stats_rollouts`."""

    group: str
    problem: int
    rollouts: list[Measured]


@dataclass
class RunSource:
    """A run's folder. Raises StreamError or DamagedLine for files that are not what was written."""

    output_dir: Path

    def __post_init__(self) -> None:
        self.output_dir = Path(self.output_dir)
        if not self.output_dir.is_dir():
            raise FileNotFoundError(f"there is no run in {self.output_dir}")

    @cached_property
    def tree(self) -> dict[str, Any]:
        """The run's configuration; empty where it is not there."""
        if not config_path(self.output_dir).is_file():
            return {}
        tree: Any = OmegaConf.to_container(read_started(self.output_dir), resolve=True)
        return tree

    @cached_property
    def accounting(self) -> RolloutAccounting:
        """How each rollout ended, as of the first call."""
        found = RolloutAccounting(self.output_dir)
        found.update()
        return found

    def _records(self, topic: str) -> Iterator[Any]:
        for number in range(len(self._folders)):
            yield from self._records_of(number, topic)

    @cached_property
    def _folders(self) -> list[str]:
        return stream_folders(self.output_dir)

    def _records_of(self, number: int, topic: str) -> Iterator[Any]:
        folder = self._folders[number]
        for path in sorted((self.output_dir / folder / topic).glob("[0-9]*/[0-9]*")):
            spec = StoredStreamSpec(self.output_dir, topic, int(path.parent.name), int(path.name), folder)
            if not list_segments(spec.directory):
                continue
            with FilesBackend().open_reader(spec, EARLIEST, "") as reader:
                while (record := reader.next_record()) is not None:
                    yield record[0]

    @cached_property
    def _standing(self) -> Standing:
        return Standing.read(self.output_dir)

    def _has(self, number: int, version: float) -> bool:
        """Whether what a start recorded of this version stands."""
        return self._standing.has(version, attempt=attempt_of(self._folders[number]))

    @cached_property
    def _latest_pass(self) -> dict[int, int]:
        """By version, the last start that evaluated it whole."""
        return {
            int(record["version"]): number
            for number in range(len(self._folders))
            for record in self._records_of(number, "stats_test")
            if "values" in record and "version" in record
        }

    def _stands(self, number: int, group: list[Record]) -> bool:
        """Whether a group of this start is of weights that the run has, and of their latest evaluation."""
        if (evaluated := evaluation_of(str(group[0]["group_id"]))) is not None:
            again = self._latest_pass.get(evaluated.version, number) > number
            return self._has(number, evaluated.version) and not again
        return self._has(number, min(text["metadata"].get("model_version", 0) for text in group))

    @cached_property
    def keeps_all(self) -> bool:
        """Whether all groups of training are there, and not those alone that were kept for people."""
        return not any((self.output_dir / folder / KEPT_TOPIC).is_dir() for folder in self._folders)

    def groups(self) -> Iterator[list[Record]]:
        """Groups of training and rollouts of evaluation, as the actor wrote them; none is empty."""
        for number, texts in self._all_groups():
            named: list[Record] = [_LEFT_OUT | text for text in texts if _is_named(text)]
            if named and self._stands(number, named):
                yield named

    def _all_groups(self) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        for topic in ("actor_test", "actor" if self.keeps_all else KEPT_TOPIC):
            for number in range(len(self._folders)):
                for record in self._records_of(number, topic):
                    if topic != KEPT_TOPIC:
                        yield number, record
                    elif "texts" in record:
                        yield number, record["texts"]

    def trained(self) -> Iterator[tuple[TextId, Trained]]:
        """Each text that went to the trainer, in order, by steps that no resume undid."""
        for number in range(len(self._folders)):
            for text, values in self._trained_in(number):
                if self._has(number, values.version + 1):  # it ended beyond the version at which it began
                    yield text, values

    def _trained_in(self, number: int) -> Iterator[tuple[TextId, Trained]]:
        if not self.keeps_all:
            for record in self._records_of(number, KEPT_TOPIC):
                if "samples" in record:
                    yield from _kept_samples(record)
            return
        began = self._standing.began(attempt_of(self._folders[number]))
        for record in self._records_of(number, "training_data"):
            if not record["sentinel"]:
                yield from _batch_samples(record, began)

    def measured(self) -> dict[str, Measured]:
        """By rollout name; empty for runs that did not record it."""
        found: dict[str, Measured] = {}
        for record in self._records("stats_rollouts"):
            try:
                group = msgspec.convert(record, _MeasuredGroup)
            except msgspec.ValidationError as error:
                raise CorruptRecord(f"stream stats_rollouts holds another record: {error}") from None
            for rollout in group.rollouts:
                rollout.problem = group.problem
                found[rollout_id(group.group, rollout.index)] = rollout
        return found

    @cached_property
    def evaluations(self) -> dict[tuple[str, int], Mapping[str, list[float | None]]]:
        """Values of each metric by problem, by start of the run and version."""
        found = (record for record in self._records("stats_test") if "values" in record)
        return {(str(one["start"]), int(one["version"])): one["values"] for one in found}

    @property
    def complete(self) -> bool:
        """Whether training came to its end."""
        return (self.output_dir / "launcher" / "completed.json").is_file()


def _is_named(text: Record) -> bool:
    """Whether it says which text it is; preprocess drops those that do not."""
    metadata = text.get("metadata")
    names = ("rollout_index", "step_index")
    return isinstance(metadata, dict) and all(isinstance(metadata.get(name), int) for name in names)


class Evaluated(NamedTuple):
    """What the name of an evaluation's group says: which start of the run asked what of which version."""

    start: str
    version: int
    problem: int


def evaluation_of(group_id: str) -> Evaluated | None:
    """Of an evaluation's group; None for one of training."""
    found = _EVALUATION.search(group_id)
    return Evaluated(found[1], int(found[2]), int(found[3])) if found else None


def _batch_samples(record: Record, began: ResumePoint) -> Iterator[tuple[TextId, Trained]]:
    """The texts of one packed row of a start that `began` there; each may have steps of another size."""
    batch = PipelineBatchEncoding.from_record(record)
    begins = began.version + (batch.step - began.step) * batch.step_texts
    for at, (group, rollout, step) in enumerate(batch.text_ids):
        start, stop = batch.seq_boundaries[at], batch.seq_boundaries[at + 1]
        learned = batch.labels[0, start:stop] != MASKED_TOKEN_ID
        ref, old = batch.ref_logprobs[0, start:stop][learned], batch.old_logprobs[0, start:stop][learned]
        yield (
            (str(group), int(rollout), int(step)),
            Trained(
                batch.step,
                float(batch.advantages[0, start]),
                float(batch.loss_weight_scale[0, start]),
                begins,
                None if np.array_equal(ref, old) else ref.copy(),
            ),
        )


def _kept_samples(record: Record) -> Iterator[tuple[TextId, Trained]]:
    for (group, rollout, step), advantage, weight, ref in record["samples"]:
        values = Trained(record["step"], advantage, weight, record["version"], ref)
        yield (group, rollout, step), values
