"""The supervisor of a run: carries out what the core decides, with real processes and the real clock."""

import logging
import math
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pipelinerl.base.closing import Closing
from pipelinerl.base.waits import ENGINES_READY, Wait
from pipelinerl.launcher.supervision.core import (
    Action,
    ChildPhase,
    GiveUp,
    GoOnWithout,
    KillChild,
    RestartChild,
    StartChild,
    SupervisorCore,
)
from pipelinerl.launcher.supervision.host import STOPPED_DEADLINE_S, Child, ChildHost, LocalHost
from pipelinerl.launcher.supervision.spec import ABANDONED_AFTER_S, ChildSpec, Exited, Healthy, News
from pipelinerl.launcher.supervision.starting import StartLog
from pipelinerl.run_state.restarts import restart_line

log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 1.0
_AFTER_KILL_S = 10.0
_FOLLOWS_S = 60.0
"""Within so long after the launcher stood still, an end may follow from what other hosts did meanwhile."""


class ChildFailed(Exception):
    """A child died and the run cannot go on. The message is one line, with what the child `said`."""

    def __init__(self, name: str, cause: str, said: str, log_path: Path) -> None:
        self.cause, self.log_path = cause, log_path
        super().__init__(f"{name}: {cause}{said} (log: {log_path})")


def _said(exited: Exited) -> str:
    """The last words of a child as the end of its cause; those of one that was killed are not why."""
    if not exited.last_words:
        return ""
    return f": {exited.last_words}" if exited.code > 0 else f"; last line: {exited.last_words}"


class Supervisor(Closing):
    """Starts and watches children. All methods belong to one thread, which must live as long as they do: the
    kernel ends a child with the thread that started it.

    `others` are the hosts beside this one, by rank. `announce(line)` gets one line per event; the folders
    `leftovers` are removed when all is over, also after a kill -9 of this process. A child of which a process
    is stopped (SIGSTOP) for `stopped_deadline_s` is killed, also while it starts. At the end each wave of
    children has `stop_deadline_s` to stop.
    """

    def __init__(
        self,
        specs: list[ChildSpec],
        *,
        others: Mapping[int, ChildHost] | None = None,
        announce: Callable[[str], None] = log.info,
        leftovers: Sequence[Path] = (),
        stopped_deadline_s: float = STOPPED_DEADLINE_S,
        stop_deadline_s: float = 15.0,
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._core = SupervisorCore(specs)
        self._announce = announce
        # Name and generation of a child and what happened to it; threads put it here.
        self._news: queue.SimpleQueue[tuple[str, int, News]] = queue.SimpleQueue()
        self._running: dict[str, Child] = {}
        self._waits: dict[str, Wait] = {}
        self._starts: dict[str, StartLog] = {}
        self._hosts: dict[int, ChildHost] = {0: LocalHost(leftovers, stopped_deadline_s), **(others or {})}
        self._next_look = 0.0
        self._looked, self._continued, self._stood_still = math.inf, -math.inf, ""
        self._stopping, self._stop_deadline_s = False, stop_deadline_s
        self.left_out: set[str] = set()
        """Children that were given up, or lost with their host, and without which the run goes on."""

    def pids(self) -> dict[str, int]:
        """Pids of the children that run now."""
        return {name: child.pid for name, child in self._running.items()}

    def ended(self) -> set[str]:
        """Children without restarts that have ended with 0."""
        return {name for name in self._specs if self._core.phase(name) is ChildPhase.ENDED}

    def replace(self, name: str, cause: str) -> None:
        """Kill a child that is ready, and start it again if its policy allows; nothing for any other."""
        self._carry_out(self._core.unresponsive(name, self._core.generation(name), cause))

    def start(self, tick: Callable[[], None] | None = None, tick_s: float = 5.0) -> None:
        """Start every child in the order of dependencies and wait until all are ready; raises ChildFailed.

        `tick` is called every `tick_s` seconds.
        """
        self._run_until(lambda: self._core.all_ready, tick, tick_s)

    def watch(
        self,
        until: Callable[[], bool] = lambda: False,
        tick: Callable[[], None] | None = None,
        tick_s: float = 5.0,
    ) -> None:
        """Until `until()`, or every child that can be done has ended with 0; raises ChildFailed.

        `tick` is called every `tick_s` seconds.
        """
        self._run_until(lambda: self._core.completed or until(), tick, tick_s)

    def _run_until(self, done: Callable[[], bool], tick: Callable[[], None] | None, tick_s: float) -> None:
        self._looked = time.monotonic()
        next_tick = self._looked if tick else math.inf
        while not done():
            if tick is not None and time.monotonic() >= next_tick:
                tick()
                next_tick = time.monotonic() + tick_s
            self._carry_out(self._core.tick(time.monotonic()))
            self._take_news(min(self._core.next_timer(), next_tick) - time.monotonic())

    def _take_news(self, longest_s: float) -> None:
        """Look at the hosts, wait for what happens next, at most `longest_s` seconds, and act on it."""
        now = time.monotonic()
        self._notice_own_stop(now)
        if now >= self._next_look:
            self._next_look = now + _LONGEST_WAIT_S
            for rank, host in list(self._hosts.items()):
                if (cause := host.look()) is not None:
                    del self._hosts[rank]
                    self._host_lost(rank, cause)
            for name, start in self._starts.items():
                self._waits[name].doing = start.look(now)
        try:
            name, generation, news = self._news.get(timeout=min(max(longest_s, 0.0), _LONGEST_WAIT_S))
        except queue.Empty:
            return
        if isinstance(news, Exited):
            self._exited(name, generation, news)
        elif self._stopping:
            return
        elif isinstance(news, Healthy):
            self._core.healthy(name, generation)
            self._end_wait(name)
            self._announce(f"{name} is healthy")
        else:
            self._carry_out(self._core.unresponsive(name, generation, news.cause, news.whatever_phase))

    def _notice_own_stop(self, now: float) -> None:
        """Say so if this process was stopped for so long that other hosts have ended what they run."""
        stood_s, self._looked = now - self._looked, now
        if stood_s > ABANDONED_AFTER_S and len(self._hosts) > 1 and not self._stopping:
            rule = f"other hosts end what they run after {ABANDONED_AFTER_S:g} s without it"
            self._stood_still = f"the launcher itself stood still for {stood_s:.0f} s, and {rule}"
            self._continued = now
            self._announce(self._stood_still)

    def _why_perhaps(self) -> str:
        """The launcher's own part in an end that is told now, for people; mostly empty."""
        return f"; {self._stood_still}" if time.monotonic() < self._continued + _FOLLOWS_S else ""

    def _exited(self, name: str, generation: int, exited: Exited) -> None:
        if self._running.pop(name, None) is None:  # its host was given up before it could say so
            return
        start = self._starts.get(name)
        at = f", while {start.look(time.monotonic())['stage']}" if start else ""
        self._end_wait(name)
        if self._stopping:
            return
        log_path = self._specs[name].stderr
        actions = self._core.exited(name, generation, exited.code, time.monotonic(), exited.last_words)
        actions = [
            action if isinstance(action, StartChild | KillChild) else replace(action, cause=action.cause + at)
            for action in actions
        ]
        for action in actions:
            if isinstance(action, GiveUp):
                raise ChildFailed(name, action.cause, _said(exited) + self._why_perhaps(), log_path)
            if isinstance(action, GoOnWithout):
                self.left_out.add(name)
                goes_on = f"the run goes on without it{self._core.still_serve(name)}"
                self._announce(f"{name}: {action.cause}{_said(exited)}; {goes_on} (log: {log_path})")
        if name in self.ended() and not actions:
            self._announce(f"{name} is done")
        self._carry_out(actions)

    def _host_lost(self, rank: int, cause: str) -> None:
        for name in [name for name in self._running if self._specs[name].host == rank]:
            del self._running[name]
            self._end_wait(name)
        if self._stopping:
            return
        self._announce(cause)
        actions = self._core.host_lost(rank, cause)
        for action in actions:
            if isinstance(action, GiveUp):
                raise ChildFailed(action.name, cause, self._why_perhaps(), self._specs[action.name].stderr)
        for action in actions:
            self.left_out.add(action.name)
            self._announce(f"the run goes on without {action.name}{self._core.still_serve(action.name)}")

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, StartChild):
                self._spawn(self._specs[action.name], action.generation)
            elif isinstance(action, KillChild):
                if action.name in self._running:
                    self._running[action.name].kill()
            elif isinstance(action, RestartChild):
                most = self._specs[action.name].max_restarts
                self._announce(restart_line(action.name, action.cause, action.number, most, action.delay_s))

    def _spawn(self, spec: ChildSpec, generation: int) -> None:
        name = spec.name
        if spec.stages and spec.health is not None:
            self._starts[name] = StartLog(spec, time.monotonic())
        child = self._running[name] = self._hosts[spec.host].start(
            spec, lambda news: self._news.put((name, generation, news))
        )
        self._announce(f"{name} started (pid {child.pid})")
        if spec.health is not None:
            said, deadline_s = f"{name} to become healthy at {spec.health.url}", spec.health.start_deadline_s
            self._waits[name] = Wait(said, deadline_s, normal=ENGINES_READY).start()

    def _end_wait(self, name: str) -> None:
        self._starts.pop(name, None)
        if wait := self._waits.pop(name, None):
            wait.end()

    def stop(self) -> None:
        """Stop all: SIGTERM in reverse order of dependencies, SIGKILL to whole groups after the deadline.

        Returns when nothing of any group is alive.
        """
        self._stopping, deadline_s = True, self._stop_deadline_s
        stopped = list(self._running.values())
        for wave in self._core.stop_order(set(self._running)):
            for name in wave & self._running.keys():  # one may have ended while others did
                self._running[name].terminate()
            self._wait_for_end(wave, deadline_s)
            if left := wave & self._running.keys():
                log.warning("%s did not stop within %g s; killing them", ", ".join(sorted(left)), deadline_s)
                for name in left & self._running.keys():
                    self._running[name].kill()
                self._wait_for_end(left, _AFTER_KILL_S)
        for child in stopped:
            if not child.wait_until_gone(_AFTER_KILL_S):
                log.error("processes of %s survived SIGKILL (pids of group %d)", child.spec.name, child.pid)
        for host in self._hosts.values():
            host.close()

    close = stop

    def _wait_for_end(self, names: set[str], deadline_s: float) -> None:
        with Wait(f"the end of {', '.join(sorted(names))}", deadline_s) as wait:
            while names & self._running.keys() and not wait.expired:
                self._take_news(wait.remaining_s)
