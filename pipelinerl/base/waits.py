"""Named waits: everything that blocks has a name and a deadline, and says so while it waits.

A wait registers itself here for as long as it lasts, so that `current_waits()` (and through it the role's
`status.json`, see `status.py`) always answers what a process is waiting for.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_active: dict[int, Wait] = {}
_ids = itertools.count()


class WaitExpired(TimeoutError):
    """A wait passed its deadline. `name` says which one, `deadline_s` how long it was allowed to last."""

    def __init__(self, name: str, deadline_s: float, detail: str = "") -> None:
        self.name = name
        self.deadline_s = deadline_s
        self.detail = detail
        super().__init__(f"waited {deadline_s:g} s for {name}" + (f": {detail}" if detail else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions travel between worker processes; the default reduction would lose the arguments.
        return (type(self), (self.name, self.deadline_s, self.detail))


class Wait:
    """One wait for `name` that may last `deadline_s` seconds; a context manager that registers itself.

    `clock` returns seconds and never goes backwards; tests inject their own.
    """

    def __init__(self, name: str, deadline_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not deadline_s >= 0:
            raise ValueError(f"the deadline of the wait for {name} must be at least 0 s, not {deadline_s}")
        self.name = name
        self.deadline_s = float(deadline_s)
        self._clock = clock
        self._start = clock()
        self._id = next(_ids)

    def __enter__(self) -> Wait:
        with _lock:
            _active[self._id] = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            _active.pop(self._id, None)

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._start

    @property
    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.deadline_s - self.elapsed_s)

    @property
    def expired(self) -> bool:
        return self.elapsed_s >= self.deadline_s

    def expire(self, detail: str = "") -> WaitExpired:
        """The error to raise when the deadline has passed."""
        return WaitExpired(self.name, self.deadline_s, detail)

    def check(self, detail: str = "") -> None:
        """Raise WaitExpired if the deadline has passed."""
        if self.expired:
            raise self.expire(detail)


def waiting(name: str, deadline_s: float, clock: Callable[[], float] = time.monotonic) -> Wait:
    """`with waiting("the first weight version", 60) as wait: ...` registers a wait while the block runs."""
    return Wait(name, deadline_s, clock)


def current_waits() -> list[dict[str, Any]]:
    """The waits of this process, longest first: name, seconds so far, deadline in seconds."""
    with _lock:
        waits = list(_active.values())
    rows = [
        {"name": w.name, "waited_s": round(w.elapsed_s, 1), "deadline_s": round(w.deadline_s, 1)}
        for w in waits
    ]
    return sorted(rows, key=lambda row: -row["waited_s"])


async def wait_for(awaitable: Awaitable[T], name: str, deadline_s: float) -> T:
    """Await with a name and a deadline; raises WaitExpired instead of a bare TimeoutError.

    What is awaited ends with the wait, also when the wait itself is cancelled.
    """
    with waiting(name, deadline_s) as wait:
        task = asyncio.ensure_future(awaitable)
        try:
            done, _ = await asyncio.wait({task}, timeout=deadline_s)
            if task in done:
                return task.result()
            raise wait.expire()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
