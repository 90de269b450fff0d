"""When to start, restart and give up: a state machine over events, without processes or clocks.

Every method takes the time in seconds and returns the actions to carry out. A child goes WAITING (for those
it depends on) -> STARTING (until healthy) -> READY -> ENDED, or through BACKOFF to STARTING again.
"""

import enum
import math
import signal
from dataclasses import dataclass

from pipelinerl.launcher.supervision.spec import ChildSpec
from pipelinerl.launcher.supervision.words import is_permanent, repeats

PERMANENT = (2, 127)
"""Exit statuses after which another start would end in the same way: arguments or data that are refused, as
argparse and the servers of this project say it, and a program that is not there."""
BACKOFF_S = 1.0
"""Before the first restart of a child; doubles with each further one."""
LONGEST_BACKOFF_S = 30.0


class ChildPhase(enum.StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    BACKOFF = "backoff"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(frozen=True)
class StartChild:
    """Start the process of `name`; `generation` counts its starts from 0."""

    name: str
    generation: int


@dataclass(frozen=True)
class KillChild:
    """Kill the process group of `name`; its exit event follows."""

    name: str


@dataclass(frozen=True)
class RestartChild:
    """`name` died of `cause` and starts again in `delay_s` seconds, for the `number`th time."""

    name: str
    cause: str
    number: int
    delay_s: float


@dataclass(frozen=True)
class GiveUp:
    """The run cannot go on without `name`, which died of `cause`."""

    name: str
    cause: str


@dataclass(frozen=True)
class GoOnWithout:
    """`name` died of `cause` once too often, and the run does not need it, or others do the same work."""

    name: str
    cause: str


Action = StartChild | KillChild | RestartChild | GiveUp | GoOnWithout


@dataclass
class _Child:
    spec: ChildSpec
    phase: ChildPhase = ChildPhase.WAITING
    generation: int = 0
    timer: float = math.inf
    killed_for: str = ""
    was_ready: bool = False
    """In this or an earlier start."""
    last_words: str = ""
    """Of the start before, which ended before it was ready."""


def _too_few(spec: ChildSpec, left: int) -> str:
    """That others do the same work, but not enough of them; empty where that is not why the run ends."""
    return f", {left} of {len(spec.alike)} left, {spec.least} needed" if 0 < left < spec.least else ""


def describe_exit(code: int) -> str:
    """An exit code for people; negative codes are signals, as subprocess reports them."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


class SupervisorCore:
    """`specs` have names of their own, and depend on each other without a circle."""

    def __init__(self, specs: list[ChildSpec]) -> None:
        self._children = {spec.name: _Child(spec) for spec in specs}

    def phase(self, name: str) -> ChildPhase:
        return self._children[name].phase

    def generation(self, name: str) -> int:
        return self._children[name].generation

    @property
    def all_ready(self) -> bool:
        """Every child is ready, or done already."""
        return all(child.phase in (ChildPhase.READY, ChildPhase.ENDED) for child in self._children.values())

    @property
    def completed(self) -> bool:
        """There is a child that can be done, and all of those have ended with 0."""
        final = [c for c in self._children.values() if c.spec.can_be_done]
        return bool(final) and all(c.phase is ChildPhase.ENDED for c in final)

    def next_timer(self) -> float:
        """The time of the next `tick` that could do something; infinity where only an event can."""
        return min((c.timer for c in self._children.values()), default=math.inf)

    def tick(self, now: float) -> list[Action]:
        """Start what can start, and act on deadlines that have passed."""
        actions: list[Action] = []
        for child in self._children.values():
            due = now >= child.timer
            if child.phase is ChildPhase.WAITING and self._dependencies_ready(child):
                actions.append(self._start(child, now))
            elif child.phase is ChildPhase.BACKOFF and due:
                child.generation += 1
                actions.append(self._start(child, now))
            elif child.phase is ChildPhase.STARTING and due and child.spec.health is not None:
                limit = child.spec.health.start_deadline_s
                child.timer = math.inf
                child.killed_for = f"not healthy at {child.spec.health.url} {limit:g} s after its start"
                actions.append(KillChild(child.spec.name))
        return actions

    def _dependencies_ready(self, child: _Child) -> bool:
        ready = (ChildPhase.READY, ChildPhase.ENDED)
        return all(self._children[name].phase in ready for name in child.spec.depends)

    def _start(self, child: _Child, now: float) -> StartChild:
        child.killed_for = ""
        health = child.spec.health
        child.phase = ChildPhase.STARTING if health else ChildPhase.READY
        child.was_ready |= health is None
        child.timer = now + health.start_deadline_s if health else math.inf
        return StartChild(child.spec.name, child.generation)

    def healthy(self, name: str, generation: int) -> None:
        """The health check of a start answered."""
        child = self._children[name]
        if child.phase is ChildPhase.STARTING and generation == child.generation and not child.killed_for:
            child.phase, child.timer, child.was_ready = ChildPhase.READY, math.inf, True

    def unresponsive(
        self, name: str, generation: int, cause: str, whatever_phase: bool = False
    ) -> list[Action]:
        """A child that is ready has to be killed for `cause`; its restarts count as after any death.

        `whatever_phase`: also one that is not ready yet.
        """
        child = self._children[name]
        phases = (ChildPhase.READY, ChildPhase.STARTING) if whatever_phase else (ChildPhase.READY,)
        if child.phase not in phases or generation != child.generation or child.killed_for:
            return []
        child.killed_for = cause
        return [KillChild(name)]

    def exited(self, name: str, generation: int, code: int, now: float, words: str = "") -> list[Action]:
        """The process of a start has ended with `code` (negative: a signal); `words` are its last ones."""
        child = self._children[name]
        if generation != child.generation or child.phase not in (ChildPhase.STARTING, ChildPhase.READY):
            return []
        most = child.spec.max_restarts
        if child.spec.can_be_done and code == 0 and not child.killed_for:
            child.phase, child.timer = ChildPhase.ENDED, math.inf
            return []
        cause = child.killed_for or describe_exit(code)
        permanent, repeated = self._for_good(child, code, words)
        if child.generation < most and not permanent and not repeated:
            delay = min(BACKOFF_S * 2.0**child.generation, LONGEST_BACKOFF_S)
            child.phase, child.timer = ChildPhase.BACKOFF, now + delay
            return [RestartChild(name, cause, child.generation + 1, delay)]
        if most:
            if child.generation < most:
                cause += "" if permanent else ", in two starts with the same words"
            final = permanent or child.generation < most
            cause += ", not started again" if final else f", after {most} restarts"
        child.phase, child.timer = ChildPhase.FAILED, math.inf
        needed = self._why_needed(child)
        if needed is None:
            child.phase = ChildPhase.ENDED
            return [GoOnWithout(name, cause)]
        return [GiveUp(name, cause + needed)]

    def _for_good(self, child: _Child, code: int, words: str) -> tuple[bool, bool]:
        """Whether no further start would end otherwise: by what this one said, and by its saying it again.

        Words count of a start that never served; and where an earlier one did, their repetition does not.
        """
        if child.killed_for or code < 0:
            return False, False
        before, unready = child.last_words, child.phase is ChildPhase.STARTING and code > 0
        child.last_words = words if unready else ""
        repeated = unready and not child.was_ready and repeats(words, before)
        return code in PERMANENT or (unready and is_permanent(words)), repeated

    def _why_needed(self, child: _Child) -> str | None:
        """Why the run cannot go on without a child, as the end of its cause; None if it can."""
        spec, left = child.spec, len(self._left(child.spec))
        if spec.optional:
            return None
        if not spec.spare or not left:
            return ""
        if not child.was_ready:  # what it was given is wrong: the others are no reason to hide that
            return ", without having been ready once"
        return _too_few(spec, left) or None

    def _left(self, spec: ChildSpec) -> list[_Child]:
        """Children that do the same work and are still there, or will be again."""
        over = (ChildPhase.ENDED, ChildPhase.FAILED)
        return [child for name in spec.alike if (child := self._children[name]).phase not in over]

    def still_serve(self, name: str) -> str:
        """How many do the work of a child that was given up, for people; empty for one that was alone."""
        spec = self._children[name].spec
        left = self._left(spec)
        if not left:
            return ""
        ready = sum(child.phase is ChildPhase.READY for child in left)
        starting = f" ({len(left) - ready} starting)" if ready < len(left) else ""
        return f", {ready} of {len(spec.alike)} still serve{starting}"

    def host_lost(self, host: int, cause: str) -> list[Action]:
        """A host is gone with its children: those that others can stand in for are done, others end the run.

        Nothing is started again there.
        """
        actions: list[Action] = []
        over = (ChildPhase.ENDED, ChildPhase.FAILED)
        lost = [c for c in self._children.values() if c.spec.host == host and c.phase not in over]
        for child in lost:
            child.phase, child.timer = ChildPhase.FAILED, math.inf
        for child in lost:
            left = len(self._left(child.spec))
            if child.spec.optional or (child.spec.alike and left >= child.spec.least):
                child.phase = ChildPhase.ENDED
                actions.append(GoOnWithout(child.spec.name, cause))
            else:
                actions.append(GiveUp(child.spec.name, cause + _too_few(child.spec, left)))
        return actions

    def stop_order(self, running: set[str]) -> list[set[str]]:
        """The running children in waves, each to be stopped before those it depends on."""
        waves: list[set[str]] = []
        last = {name for name in running if self._children[name].spec.optional}
        left = running - last
        while left:
            needed = {d for name in left for d in self._children[name].spec.depends}
            wave = left - needed
            waves.append(wave)
            left -= wave
        return [*waves, last] if last else waves
