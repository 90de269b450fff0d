"""Groups of the actor's stream as samples. A bad sample or group is a counted reason, never a crash.

`Sample.from_record` validates what a sample says of itself. Checked here is what only preprocess knows: the
room of a row, the vocabulary, whether a group is whole, and whether it came before. Called by the loop.
"""

import json
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelinerl.base.hub import with_files
from pipelinerl.finetune.rl.sample import BadSample, Sample, identity_of, metadata_of, settle_group
from pipelinerl.modeling.decoder_defaults import decoder_config
from pipelinerl.run_state.accounting import rollout_id

log = logging.getLogger(__name__)
Record = Mapping[str, Any]
WINDOW = 32
LEAST = 8


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Number of token ids, and those that end a sequence."""

    size: int
    eos_token_ids: tuple[int, ...] = ()


def model_vocabulary(model_path: str) -> Vocabulary:
    """Of a model folder or hub name, without importing torch.

    Raises ValueError when there is no readable config.json.
    """
    path = with_files(model_path, ["config.json"]) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        text = config.get("text_config") or config  # of a model that also sees
        eos = text.get("eos_token_id", config.get("eos_token_id"))
        ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
        return Vocabulary(int(decoder_config(config)["vocab_size"]), tuple(int(i) for i in ids))
    except (OSError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: no model configuration with a vocab_size ({error})") from error


@dataclass(frozen=True, slots=True)
class SampleLimits:
    """What a sample has to fit: vocabulary, tokens per packed row, rollouts per group."""

    vocab_size: int
    seq_length: int
    attempts: int
    needs_versions: bool = False


@dataclass(slots=True)
class ReadGroup:
    """One group: samples to go on with, and rollout and reason of the records that are dropped."""

    samples: list[Sample] = field(default_factory=list)
    dropped: list[tuple[str, str]] = field(default_factory=list)
    error: str = ""
    """What is wrong with its labels; then all of it is dropped."""

    def refuse(self, error: str) -> None:
        """Drop the samples that are left, because they cannot be compared."""
        self.error = error
        self.dropped += [(sample.rollout, "bad_labels") for sample in self.samples]
        self.samples = []


def rollout_of(record: Record) -> str:
    """Name of the rollout, also of a record that is no sample."""
    return rollout_id(str(record.get("group_id")), metadata_of(record).get("rollout_index", -1))


def read_groups(groups: Sequence[Sequence[Record]], limits: SampleLimits) -> list[ReadGroup]:
    """The groups of one chunk; one that holds a sample of an earlier one is refused."""
    found: list[ReadGroup] = []
    seen: set[str] = set()
    for records in groups:
        group = read_group(records, limits)
        twice = next((sample.name for sample in group.samples if sample.name in seen), None)
        seen.update(sample.name for sample in group.samples)
        if twice is not None:
            group.refuse(f"sample {twice} appears 2 times; expected once")
        found.append(group)
    return found


def read_group(records: Sequence[Record], limits: SampleLimits) -> ReadGroup:
    """An error in the group's bookkeeping or labels drops all of it, an error in a sample that sample."""
    group = ReadGroup()
    try:
        _check_bookkeeping(records, limits.attempts)
    except BadSample as error:
        group.dropped = [(rollout_of(record), error.reason) for record in records]
        return group
    error_in_labels = ""
    for record in records:
        try:
            sample = Sample.from_record(record)
            reason = _misfit(sample, limits)
        except BadSample as error:
            reason = error.reason
            if reason == "bad_labels":
                error_in_labels = error_in_labels or str(error)
        if reason:
            group.dropped.append((rollout_of(record), reason))
        else:
            group.samples.append(sample)
    try:
        settle_group(group.samples)
    except BadSample as error:
        error_in_labels = error_in_labels or str(error)
    if error_in_labels:
        group.refuse(error_in_labels)
    return group


def _check_bookkeeping(records: Sequence[Record], attempts: int) -> None:
    """Raises BadSample for a doubled or foreign index, and for a sample of another group."""
    seen: set[tuple[int, int]] = set()
    expected = records[0].get("group_id") if records else None
    for record in records:
        group_id, rollout, step = identity_of(record)
        name = f"sample {group_id}/{rollout}/{step}"
        if rollout >= attempts:
            raise BadSample("foreign_index", f"{name}: a group has {attempts} rollouts")
        if (rollout, step) in seen:
            raise BadSample("duplicate_index", f"{name} appears twice in its group")
        if record["group_id"] != expected:
            raise BadSample("foreign_group", f"{name} came with group {expected}")
        seen.add((rollout, step))


def _misfit(sample: Sample, limits: SampleLimits) -> str:
    """Why a valid sample cannot be trained on in this run; empty when it can."""
    if len(sample.input_ids) > limits.seq_length:
        return "oversize"
    if int(sample.input_ids.min()) < 0 or int(sample.input_ids.max()) >= limits.vocab_size:
        return "foreign_id"
    if limits.needs_versions and not sample.weight_versions:
        return "no_version"
    return ""


class Rejections:
    """Watches the last WINDOW groups; the share of refused ones tells a bad sample from a bad domain."""

    def __init__(self) -> None:
        self._recent: deque[bool] = deque(maxlen=WINDOW)

    def accepted(self) -> None:
        """Note one group that is in order."""
        self._recent.append(False)

    def rejected(self, message: str) -> None:
        """Note one group and its first error.

        Raises ValueError with that error once LEAST or more recent groups are known and most were rejected.
        """
        self._recent.append(True)
        log.error("a group is dropped (bad_labels): %s", message)
        bad, seen = sum(self._recent), len(self._recent)
        if seen >= LEAST and 2 * bad > seen:
            raise ValueError(f"{bad} of the last {seen} groups cannot be trained on; the last one: {message}")
