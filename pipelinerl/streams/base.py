"""What readers and writers of a partition have in common, on disk and in redis.

`files.py` and `redis_streams.py` derive from these classes. How far a writer may run ahead of those who read,
and when records are freed, is decided here once for both.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from pipelinerl.base.closing import Closing
from pipelinerl.base.waits import Wait
from pipelinerl.streams.errors import StreamBusy, StreamError
from pipelinerl.streams.records import Buffer, Tree
from pipelinerl.streams.specs import SingleStreamSpec
from pipelinerl.streams.wakeup import POLL_MAX_S, wait_any

DEFAULT_DEADLINE_S = 3600.0
EARLIEST = -1
"""Offset of a reader that begins with the first record that has not been freed."""


class StreamReader(Closing):
    """Reads one partition in order. `position` counts the records handed out: the offset to resume from.

    A reader with a name holds the records that it has not done with; asking for the next record says that it
    has done with those before.
    """

    spec: SingleStreamSpec
    position: int

    def _freed(self, wanted: int, first: int) -> StreamError:
        return StreamError(
            f"record {wanted} of stream {self.spec} was freed, the first one left is {first}; read under a "
            "name to keep records, or set streams.trim=false"
        )

    def _missing(self, wanted: int, written: int) -> StreamError:
        return StreamError(
            f"record {wanted} of stream {self.spec} does not exist, it holds {written} records"
        )

    def _replaced(self) -> StreamError:
        return StreamError(
            f"stream {self.spec} was removed or started over while it was read; start its reader again"
        )

    @abstractmethod
    def next_record(self) -> tuple[Tree] | None:
        """The next record in a 1-tuple, or None if none is complete yet; never blocks."""

    @abstractmethod
    def unread(self) -> int:
        """How many complete records lie ahead; none of them is read."""

    @abstractmethod
    def describe_end(self) -> str:
        """What lies at the end of the stream, for the message of an expired wait."""

    @abstractmethod
    def fileno(self) -> int | None:
        """A descriptor that becomes readable when the stream changes; None where there is none."""

    @property
    def buffered(self) -> bool:
        """Whether a record is here already, of which no descriptor will tell."""
        return False

    def next_pause(self) -> float:
        """Seconds after which to look again where there is no descriptor."""
        return POLL_MAX_S

    def wait(self, timeout_s: float) -> None:
        """Block until something may have been written, at most `timeout_s` seconds."""
        wait_any([self], timeout_s)

    def read(self, deadline_s: float = DEFAULT_DEADLINE_S, name: str = "") -> Iterator[Tree]:
        """Iterate for ever; each record may take `deadline_s` seconds to come, else WaitExpired(name)."""
        while True:
            record = self.next_record()
            if record is None:
                with Wait(name or f"a record of stream {self.spec}", deadline_s) as wait:
                    while (record := self.next_record()) is None:
                        wait.check(self.describe_end)
                        self.wait(wait.remaining_s)
            yield record[0]

    def read_available(self, max_records: int | None = None) -> list[Tree]:
        """All complete records there are now, at most `max_records`; never blocks."""
        records: list[Tree] = []
        while len(records) != max_records and (record := self.next_record()) is not None:
            records.append(record[0])
        return records


@dataclass(frozen=True, kw_only=True)
class FlowControl:
    """Applies to streams that somebody reads under a name; the others only grow."""

    max_unread: int | None = None
    """A writer waits while the slowest named reader is this many records behind; None: it never waits."""
    trim: bool = False
    """Free records that every named reader has done with."""
    deadline_s: float = 3600.0
    """How long a writer waits for the slowest reader before WaitExpired says which one that is."""


class PartitionWriter(Closing):
    """The single writer of one partition."""

    def __init__(self, spec: SingleStreamSpec, flow: FlowControl) -> None:
        self._spec, self._flow = spec, flow
        self._index = 0
        """Number of the next record."""
        self._may_write_to = 0

    def append(self, tree: Tree) -> None:
        """Write one record; it is visible to readers, and survives this process, when the call returns.

        StreamError when it cannot be written; WaitExpired names a reader that is too far behind.
        """
        buffers = self._encode(tree)  # before any wait: what no record can hold is refused at once
        if self._flow.max_unread is not None and self._index >= self._may_write_to:
            self._wait_for_readers(self._flow.max_unread)
        self._put(buffers)
        self._index += 1

    def _busy(self) -> StreamBusy:
        return StreamBusy(
            f"stream {self._spec} already has a writer; a partition takes one, close the other or use "
            "another partition"
        )

    def _wait_for_readers(self, bound: int) -> None:
        standing = self._positions()
        if standing and self._index - min(standing.values()) >= bound:
            name = f"the slowest reader of stream {self._spec} to be less than {bound} records behind"
            with Wait(name, self._flow.deadline_s) as wait:
                while standing and self._index - (slowest := min(standing.values())) >= bound:
                    reader = min(standing, key=standing.__getitem__)
                    wait.check(f"{reader} has done with {slowest} of {self._index}")
                    self._pause(wait.remaining_s)
                    standing = self._positions()
        # Where nobody reads under a name yet, somebody may before the next record.
        self._may_write_to = min(standing.values()) + bound if standing else 0

    def _trim(self) -> None:
        """Free what every named reader has done with."""
        if self._flow.trim and (standing := self._positions()):
            self._free_before(min(standing.values()))

    @abstractmethod
    def _encode(self, tree: Tree) -> list[Buffer]:
        """The record's bytes. Raises UnsupportedValue, or StreamError for a closed writer."""

    @abstractmethod
    def _put(self, buffers: list[Buffer]) -> None:
        """Write record number `_index`."""

    @abstractmethod
    def _positions(self) -> dict[str, int]:
        """How many records each named reader has done with."""

    @abstractmethod
    def _pause(self, remaining_s: float) -> None:
        """Block until a reader may have moved."""

    @abstractmethod
    def _free_before(self, index: int) -> None:
        """Remove records before number `index`, or some of them."""
