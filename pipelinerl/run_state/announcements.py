"""What the trainer tells the others, and the view of it that actor, preprocess and launcher keep.

Three messages travel over `weight_update_request` (trainer to all), and preprocess, which drops samples,
publishes cumulative counts by reason over `discarded`, because the lag budget has to get them back. Both
topics speak about the processes running now: `forget_announcements` empties them before the roles of a new or
resumed run start. A version and every other number here is a count of samples.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from pipelinerl.base.closing import Closing
from pipelinerl.base.waits import ENGINES_READY, Wait
from pipelinerl.streams import SingleStreamSpec, read_stream, remove_stream, wait_any, write_to_streams

TRAINER_TOPIC = "weight_update_request"
DISCARDED_TOPIC = "discarded"


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    timestamp: float = msgspec.field(default_factory=time.time)
    """Seconds since 1970."""


class SamplesProcessed(_Message, frozen=True, tag="samples_processed"):
    """Samples consumed so far; sent once at start, then after every micro-batch."""

    samples_processed: int


class WeightUpdateSuccess(_Message, frozen=True, tag="weight_update_success"):
    """Every engine in rotation serves `version` (samples behind the weights)."""

    version: int


class TrainingDone(_Message, frozen=True, tag="training_done"):
    """The final model is saved."""


TrainerMessage = SamplesProcessed | WeightUpdateSuccess | TrainingDone


def parse_message(record: Any) -> TrainerMessage:
    """The message in a record. Raises ValueError for another kind, or a missing or unknown field."""
    try:
        return msgspec.convert(record, TrainerMessage)
    except msgspec.ValidationError as error:
        raise ValueError(f"trainer message {record} is malformed: {error}") from None


def trainer_stream(output_dir: Path) -> SingleStreamSpec:
    return SingleStreamSpec(output_dir, TRAINER_TOPIC)


def discarded_stream(output_dir: Path) -> SingleStreamSpec:
    return SingleStreamSpec(output_dir, DISCARDED_TOPIC)


def forget_announcements(output_dir: Path) -> None:
    """Of an earlier start; the launcher calls this before it starts any role.

    A role that read them would take the run for finished, or its weights for newer than they are.
    """
    for topic in (TRAINER_TOPIC, DISCARDED_TOPIC):
        remove_stream(output_dir, topic)


class TrainerAnnouncements(Closing):
    """The trainer's side: a context manager that sends the three messages."""

    def __init__(self, output_dir: Path) -> None:
        self._stream = write_to_streams(trainer_stream(output_dir))
        self._one = threading.Lock()  # a version may be announced beside the trainer's step

    def _send(self, message: TrainerMessage) -> None:
        with self._one:
            self._stream.write(msgspec.to_builtins(message))

    def samples_processed(self, samples: int) -> None:
        self._send(SamplesProcessed(samples))

    def weight_update_success(self, version: int) -> None:
        self._send(WeightUpdateSuccess(version))

    def training_done(self) -> None:
        self._send(TrainingDone())

    def close(self) -> None:
        self._stream.close()


@dataclass(frozen=True)
class _Heard:
    """What the messages so far amount to."""

    version: int | None = None
    announced_at: float = 0.0
    samples: int = 0
    done: bool = False

    def and_then(self, record: Any) -> "_Heard":
        """With one more message. Raises ValueError for a malformed one."""
        match parse_message(record):
            case SamplesProcessed(samples_processed=samples):
                return replace(self, samples=samples)
            case WeightUpdateSuccess(version=version, timestamp=timestamp):
                # Announced again for an engine that was started again; an older one never counts.
                return replace(self, version=max(version, self.version or 0), announced_at=timestamp)
            case TrainingDone():
                return replace(self, done=True)


class AnnouncedVersion(Closing):
    """The newest announced version, read in the caller's own thread; a context manager.

    Whatever was written because of a version comes after its announcement. Somebody who reads such a record
    first and asks for the version then is never told too old a one, which a background thread cannot promise.
    """

    def __init__(self, output_dir: Path) -> None:
        self._reader = read_stream(trainer_stream(output_dir))
        self._heard = _Heard()

    def newest(self) -> int | None:
        """None before the first announcement."""
        for record in self._reader.read_available():
            self._heard = self._heard.and_then(record)
        return self._heard.version

    def close(self) -> None:
        self._reader.close()


class DiscardedTexts(Closing):
    """Cumulative counts of the samples that preprocess dropped, published on every change."""

    def __init__(self, output_dir: Path) -> None:
        self._stream = write_to_streams(discarded_stream(output_dir))
        self.counts: dict[str, int] = {}

    def add(self, reason: str, texts: int) -> None:
        """Count `texts` more for `reason` and publish; nothing is published for 0."""
        if texts < 0:
            raise ValueError(f"{texts} samples cannot be discarded ({reason})")
        if texts:
            self.counts[reason] = self.counts.get(reason, 0) + texts
            # The sum and not the difference: a reader needs the last record only.
            self._stream.write({"counts": self.counts})

    def close(self) -> None:
        self._stream.close()


class TrainerState(Closing):
    """The latest word of the trainer, kept by a background thread; a context manager.

    Reading a property after that thread failed raises its error.
    """

    def __init__(self, output_dir: Path) -> None:
        self._changed = threading.Condition()
        self._wake = os.eventfd(0)  # ends the thread's wait when the state is closed
        self._stopping = False
        self._error: BaseException | None = None
        self._heard = _Heard()
        self._discarded = 0
        self._on_change: Callable[[], None] | None = None
        self._trainer = read_stream(trainer_stream(output_dir))
        self._preprocess = read_stream(discarded_stream(output_dir))
        self._thread = threading.Thread(target=self._follow, name="trainer-state", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            while not self._stopping:
                heard = self._heard
                for record in self._trainer.read_available():
                    heard = heard.and_then(record)
                dropped = self._preprocess.read_available()
                if heard is self._heard and not dropped:
                    # What comes between the look and this wait ends it at once.
                    wait_any([self._trainer, self._preprocess], timeout_s=1.0, wake=self._wake)
                    continue
                # All at once: whoever sees a version also sees the refunds that were read with it.
                with self._changed:
                    self._heard = heard
                    if dropped:
                        self._discarded = sum(dropped[-1]["counts"].values())
                    self._changed.notify_all()
                self._tell()
        except BaseException as error:  # handed to whoever reads the state
            with self._changed:
                self._error = error
                self._changed.notify_all()
            self._tell()

    def _tell(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call it after every change from now on, from the background thread (use call_soon_threadsafe)."""
        self._on_change = callback

    def _checked(self) -> _Heard:
        if self._error is not None:
            raise self._error
        return self._heard

    @property
    def propagated_weight_version(self) -> int | None:
        """The last announced version in samples; None before the first announcement."""
        return self._checked().version

    @property
    def announced_at(self) -> float:
        """When a version was announced last, in seconds since 1970; the same one may be announced again."""
        return self._checked().announced_at

    @property
    def samples_processed(self) -> int:
        """Samples consumed by the trainer."""
        return self._checked().samples

    @property
    def training_done(self) -> bool:
        return self._checked().done

    @property
    def discarded(self) -> int:
        """Samples dropped in this start of the run, for whatever reason."""
        self._checked()
        return self._discarded

    def wait_for_version(self, deadline_s: float) -> int:
        """Block until a version is announced and return it; raises WaitExpired."""
        name = "the first weight version from the trainer"
        with Wait(name, deadline_s, normal=ENGINES_READY) as wait, self._changed:
            while (version := self._checked().version) is None:
                wait.check()
                self._changed.wait(wait.remaining_s)
            return version

    def close(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(timeout=5)
        # A thread that hangs in a callback keeps its descriptors: their numbers must not name other files.
        if not self._thread.is_alive():
            os.close(self._wake)
            self._trainer.close()
            self._preprocess.close()
