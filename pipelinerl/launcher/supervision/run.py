"""The edge of the supervisor: carries out what the core decides, with real processes and the real clock."""

from __future__ import annotations

import contextlib
import logging
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pipelinerl.base.waits import Wait, waiting
from pipelinerl.launcher.supervision import guard as guard_module
from pipelinerl.launcher.supervision.core import Action, GiveUp, Kill, Phase, Restart, Start, SupervisorCore
from pipelinerl.launcher.supervision.process import RunningChild
from pipelinerl.launcher.supervision.spec import ChildSpec, write_start_script

log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 1.0
_AFTER_KILL_S = 10.0


class ChildFailed(Exception):
    """A child died and the run cannot go on. The message is one line; `log_tail` has its last log lines."""

    def __init__(self, name: str, cause: str, log_tail: list[str], log_path: Path) -> None:
        self.name, self.cause, self.log_tail, self.log_path = name, cause, log_tail, log_path
        said = f": {log_tail[-1]}" if log_tail else ""
        super().__init__(f"{name}: {cause}{said} (log: {log_path})")


@dataclass(frozen=True)
class _Exited:
    name: str
    generation: int
    code: int


@dataclass(frozen=True)
class _Healthy:
    name: str
    generation: int


@dataclass(frozen=True)
class _Silent:
    name: str
    generation: int
    cause: str


_Event = _Exited | _Healthy | _Silent


class _Guard:
    """The process that cleans up after a supervisor that was killed."""

    def __init__(self, leftovers: Sequence[Path]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard_module.__file__, *map(str, leftovers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def tell(self, sign: str, pgid: int) -> None:
        assert self._process.stdin is not None
        # A guard that was killed a moment ago is replaced in the next step and told everything again.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{sign}{pgid}\n".encode())
            self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


class Supervisor:
    """Starts and watches children. All methods belong to one thread, which must live as long as they do.

    `on_restart(name)` is called when a child is started again; `announce(line)` gets one line per event;
    the folders `leftovers` are removed when all is over, also after a kill -9 of this process.
    """

    def __init__(
        self,
        specs: list[ChildSpec],
        *,
        on_restart: Callable[[str], None] | None = None,
        announce: Callable[[str], None] | None = None,
        leftovers: Sequence[Path] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._core = SupervisorCore(specs)
        self._on_restart = on_restart
        self._announce = announce or log.info
        self._clock = clock
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._running: dict[str, RunningChild] = {}
        self._waits: dict[str, Wait] = {}
        self._thread = threading.get_ident()
        self._leftovers = leftovers
        self._guard: _Guard | None = None

    def pids(self) -> dict[str, int]:
        """Pids of the children that run now."""
        return {name: child.pid for name, child in self._running.items()}

    def phases(self) -> dict[str, Phase]:
        return {name: self._core.phase(name) for name in self._specs}

    def replace(self, name: str, cause: str) -> None:
        """Kill a child that is ready, and start it again if its policy allows; nothing for any other."""
        self._carry_out(self._core.unresponsive(name, self._core.generation(name), cause))

    def start(self, tick: Callable[[], None] | None = None, tick_s: float = 5.0) -> None:
        """Start every child in the order of dependencies and wait until all are ready; raises ChildFailed.

        `tick` is called every `tick_s` seconds.
        """
        if threading.get_ident() != self._thread:
            raise RuntimeError("the supervisor must be used by the thread that made it")
        self._guard = _Guard(self._leftovers)
        for spec in self._specs.values():
            write_start_script(spec)
        self._run_until(lambda: self._core.all_ready, tick, tick_s)

    def watch(
        self,
        until: Callable[[], bool] | None = None,
        tick: Callable[[], None] | None = None,
        tick_s: float = 5.0,
    ) -> None:
        """Until `until()`, or every child without restarts has ended with 0; raises ChildFailed.

        `tick` is called every `tick_s` seconds.
        """
        self._run_until(lambda: self._core.completed or (until is not None and until()), tick, tick_s)

    def _run_until(self, done: Callable[[], bool], tick: Callable[[], None] | None, tick_s: float) -> None:
        next_tick = self._clock()
        while not done():
            if tick is not None and self._clock() >= next_tick:
                tick()
                next_tick = self._clock() + tick_s
            self._step(min(_LONGEST_WAIT_S, max(0.0, next_tick - self._clock()) if tick else _LONGEST_WAIT_S))

    def _step(self, longest_s: float) -> None:
        """Let the core act on timers and on the next event, waiting at most `longest_s` seconds for one."""
        self._renew_guard()
        self._carry_out(self._core.tick(self._clock()))
        timer = self._core.next_timer()
        if timer is not None:
            longest_s = min(longest_s, max(0.0, timer - self._clock()))
        try:
            event = self._events.get(timeout=longest_s)
        except queue.Empty:
            return
        self._carry_out(self._handle(event))

    def _handle(self, event: _Event) -> list[Action]:
        if isinstance(event, _Healthy):
            self._core.healthy(event.name, event.generation)
            self._end_wait(event.name)
            self._announce(f"{event.name} is healthy")
            return []
        if isinstance(event, _Silent):
            return self._core.unresponsive(event.name, event.generation, event.cause)
        child = self._forget(event.name)
        actions = self._core.exited(event.name, event.generation, event.code, self._clock())
        for action in actions:
            if isinstance(action, GiveUp):
                raise ChildFailed(action.name, action.cause, child.log_tail(), child.spec.stderr)
        if self._core.phase(event.name) is Phase.ENDED:
            self._announce(f"{event.name} is done")
        return actions

    def _forget(self, name: str) -> RunningChild:
        """Clean up after a child whose end was reported."""
        child = self._running.pop(name)
        self._end_wait(name)
        child.reap()
        if self._guard is not None and self._guard.alive:
            self._guard.tell("-", child.pid)
        return child

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                self._spawn(self._specs[action.name], action.generation)
            elif isinstance(action, Kill):
                self._running[action.name].kill()
            elif isinstance(action, Restart):
                self._announce(
                    f"{action.name}: {action.cause}; restart {action.number} of "
                    f"{self._specs[action.name].restart.max_restarts} in {action.delay_s:g} s"
                )

    def _spawn(self, spec: ChildSpec, generation: int) -> None:
        name, put = spec.name, self._events.put
        child = RunningChild(
            spec,
            on_exit=lambda code: put(_Exited(name, generation, code)),
            on_healthy=lambda: put(_Healthy(name, generation)),
            on_silent=lambda cause: put(_Silent(name, generation, cause)),
        )
        self._running[name] = child
        if self._guard is not None and self._guard.alive:
            self._guard.tell("+", child.pid)
        self._announce(f"{name} started (pid {child.pid})")
        if spec.health is not None:
            wait = waiting(f"{name} to become healthy at {spec.health.url}", spec.health.start_deadline_s)
            self._waits[name] = wait.__enter__()
        if generation and self._on_restart is not None:
            self._on_restart(name)

    def _end_wait(self, name: str) -> None:
        if wait := self._waits.pop(name, None):
            wait.__exit__(None, None, None)

    def _renew_guard(self) -> None:
        """Someone killed the guard: a new one takes over the groups that run now."""
        if self._guard is not None and not self._guard.alive:
            log.warning("the guard process died; a new one takes over")
            self._guard = _Guard(self._leftovers)
            for child in self._running.values():
                self._guard.tell("+", child.pid)

    def stop(self, deadline_s: float = 15.0) -> None:
        """Stop all: SIGTERM in reverse order of dependencies, SIGKILL to whole groups after `deadline_s`.

        Returns when nothing of any group is alive.
        """
        stopped = list(self._running.values())
        for wave in self._core.stop_order(set(self._running)):
            for name in wave:
                self._running[name].terminate()
            self._wait_for_end(wave, deadline_s)
            if left := wave & self._running.keys():
                log.warning("%s did not stop within %g s and are killed", ", ".join(sorted(left)), deadline_s)
                for name in left:
                    self._running[name].kill()
                self._wait_for_end(left, _AFTER_KILL_S)
        for child in stopped:
            if not child.wait_until_gone(_AFTER_KILL_S):
                log.error("processes of %s survived SIGKILL (pids of group %d)", child.spec.name, child.pid)
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def _wait_for_end(self, names: set[str], deadline_s: float) -> None:
        with waiting(f"the end of {', '.join(sorted(names))}", deadline_s, self._clock) as wait:
            while names & self._running.keys() and not wait.expired:
                try:
                    event = self._events.get(timeout=wait.remaining_s)
                except queue.Empty:
                    return
                if isinstance(event, _Exited) and event.name in self._running:
                    self._forget(event.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
