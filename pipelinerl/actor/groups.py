"""Groups and the slots of engines: which rollout starts where, and when a group is complete.

Pure bookkeeping. Everything that enters leaves exactly once: each started rollout is finished or
cancelled once, each group is returned once.
"""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from pipelinerl.actor.known_rates import Known
from pipelinerl.actor.messages import FinishedRollout


@dataclass(slots=True)
class Group:
    """The attempts on one problem."""

    id: str
    number: int
    """Count of groups of its kind; seeds derive from it."""
    problem: int
    """Index into the training or the test problems."""
    payload: bytes
    attempts: int
    training: bool
    version: int
    """Newest announced version when the group was opened."""
    weight: float = 1.0
    """How many times as likely its problem was as in a uniform draw."""
    started: int = 0
    cut_short: bool = False
    """No further attempts start."""
    running: set[int] = field(default_factory=set)
    finished: dict[int, FinishedRollout] = field(default_factory=dict)
    """By rollout index."""
    known: Known | None = None
    """What is known of its problem once it is complete; None where problems are drawn alike."""

    @property
    def waiting(self) -> int:
        return 0 if self.cut_short else self.attempts - self.started

    @property
    def complete(self) -> bool:
        return not self.running and not self.waiting


@dataclass(frozen=True, slots=True)
class Start:
    """One rollout to start."""

    key: int
    group: Group
    rollout_index: int
    engine: str
    worker: int
    at: float = field(default_factory=time.time)
    """When, in seconds since 1970."""

    @property
    def name(self) -> str:
        return f"{self.group.id}/{self.rollout_index}"


class Slots:
    """Engines and workers with the number of rollouts active on each."""

    def __init__(self, engines: Iterable[str], per_engine: int, workers: int):
        self.per_engine = per_engine
        self.engines = dict.fromkeys(engines, 0)
        self.workers = [0] * workers
        self.out: set[str] = set()
        """Engines out of rotation."""

    def least_active(self) -> str | None:
        """The engine in rotation with the fewest active rollouts and room for one more."""
        room = {e: n for e, n in self.engines.items() if n < self.per_engine and e not in self.out}
        return min(room, key=room.__getitem__, default=None)

    def take(self, engine: str) -> int:
        """Occupy a slot; returns the worker with the fewest rollouts."""
        self.engines[engine] += 1
        # Any worker reaches any engine, so the two are balanced independently.
        worker = min(range(len(self.workers)), key=self.workers.__getitem__)
        self.workers[worker] += 1
        return worker

    def release(self, engine: str, worker: int) -> None:
        self.engines[engine] -= 1
        self.workers[worker] -= 1


class GroupTable:
    """Open groups and running rollouts."""

    def __init__(self, slots: Slots):
        self.slots = slots
        self.groups: dict[str, Group] = {}
        self._queue: deque[Group] = deque()
        """Groups with attempts that have not started, oldest first."""
        self._running: dict[int, Start] = {}
        self._next_key = 0

    @property
    def active(self) -> int:
        return len(self._running)

    @property
    def running(self) -> Iterable[int]:
        """Keys of the running rollouts, in the order of their starts."""
        return self._running

    @property
    def oldest(self) -> Start | None:
        """The running rollout that started first."""
        return next(iter(self._running.values()), None)

    @property
    def oldest_evaluation(self) -> Start | None:
        """The running evaluation rollout that started first."""
        return next((start for start in self._running.values() if not start.group.training), None)

    @property
    def waiting(self) -> int:
        """Attempts of open groups that have no slot yet."""
        return sum(group.waiting for group in self._queue)

    @property
    def has_waiting(self) -> bool:
        """Whether an open group has attempts that have not started."""
        # Oldest group first: attempts of younger ones start only when it has none left, since a group is
        # published whole and its samples grow old while it waits for its last attempts.
        while self._queue and not self._queue[0].waiting:
            self._queue.popleft()
        return bool(self._queue)

    def open(self, group: Group) -> None:
        self.groups[group.id] = group
        self._queue.append(group)

    def start_next(self) -> Start | None:
        """Start the oldest waiting attempt on the least active engine, if there is room."""
        engine = self.slots.least_active() if self.has_waiting else None
        if engine is None:
            return None
        group = self._queue[0]
        start = Start(self._next_key, group, group.started, engine, self.slots.take(engine))
        self._next_key += 1
        group.started += 1
        group.running.add(start.key)
        self._running[start.key] = start
        return start

    def finish(self, rollout: FinishedRollout) -> Start | None:
        """Take in how a rollout ended; None if it was cancelled meanwhile."""
        start = self._running.pop(rollout.key, None)
        if start is None:
            return None  # its slot was released when it was cancelled
        self.slots.release(start.engine, start.worker)
        start.group.running.discard(rollout.key)
        start.group.finished[start.rollout_index] = rollout
        return start

    def cut_short(self, group: Group) -> int:
        """Start no further attempts of a group; returns how many there would have been."""
        skipped, group.cut_short = group.waiting, True
        return skipped

    def cancel_training(self) -> list[Start]:
        """Drop all training groups; returns their running rollouts, which must be cancelled."""
        # Their slots are free at once: an evaluation of the last version need not wait until workers have
        # cancelled them, and what they still send is ignored by `finish`.
        cancelled = [start for start in self._running.values() if start.group.training]
        for start in cancelled:
            del self._running[start.key]
            self.slots.release(start.engine, start.worker)
        self.groups = {id_: group for id_, group in self.groups.items() if not group.training}
        self._queue = deque(group for group in self._queue if not group.training)
        return cancelled
