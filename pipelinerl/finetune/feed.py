"""The trainer's input: micro-batches of its partition, in order, step by step.

Each rank has a partition of its own, so that no rank waits for what another one reads. The loop makes a
`Feed` where the resume point says, and stores `position` in every checkpoint.
Where several ranks compute a row together, the first of them reads for all (`Feed.group`, `Follower`).
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from pipelinerl.base.waits import ROLLOUTS, Wait
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding
from pipelinerl.modeling.seq_parallel import RowGroup
from pipelinerl.streams import SingleStreamSpec, read_stream

IDLE_INTERVAL_S = 2.0


class Feed:
    """Reads one partition of `training_data`; a context manager.

    While nothing comes, `on_idle` runs every two seconds, so that other duties of the trainer go on. The
    writer knows the reader as `name`. A recording has no writer: where it ends, nothing is waited for. What
    it reads it hands to the `group` of ranks that compute it with this one.
    """

    def __init__(
        self,
        spec: SingleStreamSpec,
        offset: int,
        deadline_s: float,
        on_idle: Callable[[], None],
        name: str = "",
        recording: bool = False,
        group: RowGroup | None = None,
    ) -> None:
        self._reader = read_stream(spec, offset, name)
        self._deadline_s, self._on_idle = deadline_s, on_idle
        self._recording, self._group = recording, group
        # One record, read to see whether there is another; it counts as unread.
        self._ahead: tuple[Any] | None = None
        self.waited_s = 0.0
        """Seconds without input since the loop last set it to 0."""

    @property
    def position(self) -> int:
        """Records handed out: where a resumed trainer goes on."""
        return self._reader.position - (self._ahead is not None)

    @property
    def unread(self) -> int:
        """Micro-batches that are there and not handed out yet."""
        return self._reader.unread() + (self._ahead is not None)

    @property
    def exhausted(self) -> bool:
        """Whether this is a recording and it has no further micro-batch."""
        if self._recording and self._ahead is None:
            self._ahead = self._reader.next_record()
        return self._recording and self._ahead is None

    def step(self, step: int) -> Iterator[PipelineBatchEncoding]:
        """The micro-batches of one optimizer step; raises ValueError when another step arrives."""
        while True:
            batch = PipelineBatchEncoding.from_record(self._next(step))
            if batch.step != step:
                raise ValueError(
                    f"training_data holds step {batch.step} where step {step} was expected; "
                    "the stream belongs to another start of the run"
                )
            if self._group is not None:
                self._group.share(batch)
            yield batch
            if batch.is_last:
                return

    def _next(self, step: int) -> Any:
        record, self._ahead = self._ahead or self._reader.next_record(), None
        if record is not None:
            return record[0]
        if self._recording:
            raise ValueError(
                f"the recording {self._reader.spec} ends within step {step}; record the run again"
            )
        started = time.monotonic()
        with Wait(f"samples of step {step}", self._deadline_s, normal=ROLLOUTS) as wait:
            while (record := self._reader.next_record()) is None:
                # The end of the stream says whether a writer was killed in the middle of a record.
                wait.check(self._reader.describe_end)
                self._reader.wait(min(IDLE_INTERVAL_S, wait.remaining_s))
                if time.monotonic() - started > IDLE_INTERVAL_S:
                    self._on_idle()
        self.waited_s += time.monotonic() - started
        return record[0]

    def close(self) -> None:
        self._reader.close()


class Follower:
    """The input of a rank whose group's first rank reads: the same micro-batches, and nothing of its own."""

    position, unread, exhausted = 0, 0, False

    def __init__(self, group: RowGroup) -> None:
        self._group, self.waited_s = group, 0.0

    def step(self, step: int) -> Iterator[PipelineBatchEncoding]:
        """The micro-batches of one optimizer step, as soon as the first rank has them."""
        while True:
            started = time.monotonic()
            batch: PipelineBatchEncoding = self._group.share(None)
            self.waited_s += time.monotonic() - started
            yield batch
            if batch.is_last:
                return

    def close(self) -> None:
        """Nothing is open."""
