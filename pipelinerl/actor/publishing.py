"""Writing finished groups into their streams, off the event loop.

A slow disk then delays the next group, never a running rollout: the queue holds `capacity` groups, and no
group starts while it is full.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any


class StreamWriterThread:
    """Calls `write(topic, record)` for each item in order on a thread of its own."""

    def __init__(self, write: Callable[[str, Any], None], capacity: int, on_room: Callable[[], None]):
        """`on_room` is called from the thread after every write."""
        self._write, self._on_room, self.capacity = write, on_room, capacity
        self._items: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="stream writer", daemon=True)
        self._thread.start()

    @property
    def size(self) -> int:
        """Groups that wait to be written."""
        return self._items.qsize()

    @property
    def full(self) -> bool:
        return self.size >= self.capacity

    def put(self, topic: str, record: Any) -> None:
        """Queue a record, whatever the capacity. Raises the error of an earlier write."""
        # A complete group is kept, however many there are; `full` keeps new ones from starting.
        self.check()
        self._items.put((topic, record))

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self, deadline_s: float) -> None:
        """Write what is queued. Raises TimeoutError at the deadline, or a write's error."""
        self._items.put(None)
        self._thread.join(deadline_s)
        if self._thread.is_alive():
            raise TimeoutError(
                f"waited {deadline_s:g} s for {self.size} groups to be written to their streams"
            )
        self.check()

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            try:
                self._write(*item)
            except BaseException as error:  # handed to the loop, which ends the run with it
                self._error = error
                self._on_room()  # the loop looks at `check` when it is woken
                return  # nothing behind the failed record may be written: the stream is in order or it ends
            self._on_room()
