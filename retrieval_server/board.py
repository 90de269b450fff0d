"""Numbers that all processes of one server share: who is well, and what was received and answered.

Each process writes its own row only and reads all, so no lock is needed and nothing is counted twice. Rows
outlive their process: the counters of one that was restarted go on.
"""

import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import numpy as np

ROUTES = ("/local/search", "/browsecomp/search", "other")
_STATUSES = 600
_FIXED = 6
_FIELDS = _FIXED + len(ROUTES) * (1 + _STATUSES)


class State(IntEnum):
    """What a process is doing."""

    STARTING = 0
    BUILDING = 1  # waits for the index
    LOADING = 2
    OK = 3


_STATE, _PID, _STARTS, _BEAT_NS, _WAITING, _INDEX_READY = range(_FIXED)


class Board:
    """Rows of `processes` processes in memory that children inherit through the file descriptor `fd`."""

    def __init__(self, processes: int, fd: int | None = None) -> None:
        size = processes * _FIELDS * 8
        if fd is None:
            with tempfile.TemporaryFile() as file:
                file.truncate(size)
                fd = os.dup(file.fileno())
        self.fd = fd
        self._rows = np.frombuffer(mmap.mmap(fd, size), dtype=np.int64).reshape(processes, _FIELDS)

    def row(self, number: int) -> "Row":
        return Row(self._rows[number])

    def __iter__(self) -> Iterator["Row"]:
        return (self.row(number) for number in range(len(self._rows)))

    @property
    def index_ready(self) -> bool:
        """Whether the index that is served is finished; written by the parent."""
        return bool(self._rows[0, _INDEX_READY])

    @index_ready.setter
    def index_ready(self, ready: bool) -> None:
        self._rows[0, _INDEX_READY] = ready

    @property
    def all_ok(self) -> bool:
        return all(row.state is State.OK for row in self)

    @property
    def waiting(self) -> int:
        """Searches that wait for a slot, over all processes."""
        return sum(row.waiting for row in self)

    def requests(self) -> dict[str, dict[str, Any]]:
        """By search route: requests received, and answers by status; sums over all processes."""
        totals = self._rows[:, _FIXED:].sum(axis=0).reshape(len(ROUTES), 1 + _STATUSES)
        return {
            route: {
                "received": int(counts[0]),
                "by_status": {str(status): int(counts[1 + status]) for status in np.flatnonzero(counts[1:])},
            }
            for route, counts in zip(ROUTES, totals)
            if route != "other"
        }

    def describe(self) -> list[dict[str, Any]]:
        """One object per process."""
        return [
            {
                "pid": row.pid,
                "status": row.state.name.lower(),
                "starts": row.starts,
                "beat_age_s": round(row.beat_age_s, 1),
                "waiting": row.waiting,
                "received": row.received,
            }
            for row in self
        ]


class Row:
    """The numbers of one process."""

    def __init__(self, values: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self._values = values

    def begin(self) -> None:
        """This process owns the row from now on; the counters of an earlier owner stay."""
        self._values[_STATE] = State.STARTING
        self._values[_PID] = os.getpid()
        self._values[_STARTS] += 1
        self._values[_WAITING] = 0
        self.beat()

    def beat(self) -> None:
        """Say that the event loop runs."""
        self._values[_BEAT_NS] = time.monotonic_ns()

    def count_received(self, route: str) -> None:
        self._values[self._place(route)] += 1

    def count_answered(self, route: str, status: int) -> None:
        self._values[self._place(route) + 1 + min(status, _STATUSES - 1)] += 1

    @staticmethod
    def _place(route: str) -> int:
        known = route if route in ROUTES else "other"
        return _FIXED + ROUTES.index(known) * (1 + _STATUSES)

    @property
    def state(self) -> State:
        return State(int(self._values[_STATE]))

    @state.setter
    def state(self, state: State) -> None:
        self._values[_STATE] = state

    @property
    def waiting(self) -> int:
        return int(self._values[_WAITING])

    @waiting.setter
    def waiting(self, waiting: int) -> None:
        self._values[_WAITING] = waiting

    @property
    def pid(self) -> int:
        return int(self._values[_PID])

    @property
    def starts(self) -> int:
        return int(self._values[_STARTS])

    @property
    def beat_age_s(self) -> float:
        """Seconds since the event loop last ran; all processes of a host share the monotonic clock."""
        return (time.monotonic_ns() - int(self._values[_BEAT_NS])) / 1e9

    @property
    def received(self) -> int:
        """Requests of all routes."""
        return int(self._values[_FIXED :: 1 + _STATUSES].sum())
