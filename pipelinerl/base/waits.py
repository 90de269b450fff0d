"""Named waits: everything that blocks has a name and a deadline, and says so while it waits.

A wait registers itself here for as long as it lasts, so that `current_waits()` (and through it the role's
`status.json`, see `status.py`) always answers what a process is waiting for.
"""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

T = TypeVar("T")

ENGINES_READY = "seconds on a CPU, minutes while vLLM loads and compiles a large model"
ROLLOUTS = "as long as rollouts take; an evaluation goes first"
"""What several roles say is normal (`Wait.normal`)."""

_lock = threading.Lock()
_active: "set[Wait]" = set()


class WaitExpired(TimeoutError):
    """A wait passed its deadline. `name` says which one, `deadline_s` how long it was allowed to last."""

    def __init__(self, name: str, deadline_s: float, detail: str = "") -> None:
        super().__init__(f"waited {deadline_s:g} s for {name}" + (f": {detail}" if detail else ""))


class Wait:
    """One wait for `name`, at most `deadline_s` seconds: `with Wait("the first weight version", 60): ...`.

    Where it lasts longer than a block, such as from one look to a later one, `start` and `end` enclose it.
    `clock` returns seconds and never goes backwards; tests inject their own.
    """

    def __init__(
        self, name: str, deadline_s: float, clock: Callable[[], float] = time.monotonic, normal: str = ""
    ) -> None:
        if not deadline_s >= 0:
            raise ValueError(f"the deadline of the wait for {name} must be at least 0 s, not {deadline_s}")
        self.name = name
        self.deadline_s = float(deadline_s)
        self.normal = normal
        """How long it may well last, for people: `a minute or two while a model is loaded`."""
        self.doing: dict[str, Any] | None = None
        """What is known of the other side: `who`, its `stage`, and `for_s` seconds so far."""
        self._clock = clock
        self._start = clock()

    def start(self) -> Self:
        """Register it."""
        with _lock:
            _active.add(self)
        return self

    def end(self) -> None:
        """It lasts no longer."""
        with _lock:
            _active.discard(self)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.end()

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

    def check(self, detail: str | Callable[[], str] = "") -> None:
        """Raise WaitExpired if the deadline has passed; only then is a `detail` that looks asked for."""
        if self.expired:
            raise WaitExpired(self.name, self.deadline_s, detail() if callable(detail) else detail)


def current_waits() -> list[dict[str, Any]]:
    """The waits of this process, longest first: name, seconds so far, deadline in seconds, and where they are
    known `Wait.normal` and `Wait.doing`.
    """
    with _lock:
        waits = list(_active)
    rows = [
        {"name": w.name, "waited_s": round(w.elapsed_s, 1), "deadline_s": round(w.deadline_s, 1)}
        | ({"normal": w.normal} if w.normal else {})
        | ({"doing": w.doing} if w.doing else {})
        for w in waits
    ]
    return sorted(rows, key=lambda row: -row["waited_s"])


async def wait_for(awaitable: Awaitable[T], name: str, deadline_s: float, normal: str = "") -> T:
    """Await with a name and a deadline; raises WaitExpired instead of a bare TimeoutError.

    What is awaited ends with the wait, also when the wait itself is cancelled.
    """
    with Wait(name, deadline_s, normal=normal):
        task = asyncio.ensure_future(awaitable)
        try:
            done, _ = await asyncio.wait({task}, timeout=deadline_s)
            if task in done:
                return task.result()
            raise WaitExpired(name, deadline_s)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class StallDetector:
    """For how long a watched value has not changed: the one measure of silence, whatever is watched. Pure.

    A watcher that was stopped itself and goes on must blame nobody for the time it missed, so no pause
    between two looks counts more than `longest_s`.
    """

    def __init__(self, seen: object, now: float, longest_s: float = math.inf) -> None:
        self.seen, self.silent_s = seen, 0.0
        self._looked, self._longest_s = now, longest_s

    def look(self, value: object, now: float) -> float:
        """What the watcher sees at `now` (seconds that never go backwards); returns `silent_s`."""
        self.silent_s += min(now - self._looked, self._longest_s)
        self._looked = now
        if value != self.seen:
            self.seen = value
            self.silent_s = 0.0
        return self.silent_s

    def restart(self, now: float) -> None:
        """There is a reason for the silence, such as a pause for new weights; count from now."""
        self._looked, self.silent_s = now, 0.0
