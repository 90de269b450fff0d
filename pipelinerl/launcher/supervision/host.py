"""A host that runs children: this one here, others in `remote.py`. The supervisor knows no difference."""

import contextlib
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipelinerl.launcher.supervision import guard as guard_module
from pipelinerl.launcher.supervision.process import RunningChild, stopped_processes, what_runs
from pipelinerl.launcher.supervision.spec import ChildSpec

log = logging.getLogger(__name__)

_GUARD_END_S = 15.0
STOPPED_DEADLINE_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a host tells about one start of a child, from any thread."""

    exited: Callable[[int], None]
    healthy: Callable[[], None]
    silent: Callable[[str], None]
    """The cause for killing it once it is ready."""
    stopped: Callable[[str], None]
    """The cause for killing it whatever its phase; may come again."""


class Child(Protocol):
    """One started process group."""

    spec: ChildSpec
    pid: int

    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def reap(self) -> None: ...
    def wait_until_gone(self, deadline_s: float) -> bool: ...
    def last_words(self) -> str: ...


class ChildHost(Protocol):
    """Where children are started. `start` and `look` are called by one thread."""

    def start(self, spec: ChildSpec, told: Told) -> Child: ...

    def look(self) -> None:
        """Called about once a second."""

    def on_lost(self, tell: Callable[[str], None]) -> None:
        """Call `tell` with the cause when the host is gone, at once if it is."""

    def close(self) -> None:
        """When no child is left."""


class _Guard:
    """The process that cleans up after a supervisor that was killed."""

    def __init__(self, leftovers: Sequence[Path]) -> None:
        self._leftovers = leftovers
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
        try:
            self._process.wait(_GUARD_END_S)
        except subprocess.TimeoutExpired:  # somebody stopped it; what it would remove is removed here
            log.warning("the guard process did not end within %g s and is killed", _GUARD_END_S)
            self._process.kill()
            self._process.wait()
            for folder in self._leftovers:
                guard_module.remove(str(folder), time.time())


class LocalHost:
    """Children of this process. All methods belong to one thread that lives as long as they do: the kernel
    ends a child with the thread that started it.

    The folders `leftovers` are removed at the end, also after a kill -9 of this process.
    """

    def __init__(
        self, leftovers: Sequence[Path] = (), stopped_deadline_s: float = STOPPED_DEADLINE_S
    ) -> None:
        self._leftovers, self._stopped_deadline_s = leftovers, stopped_deadline_s
        self._running: dict[int, _GuardedChild] = {}
        self._guard = _Guard(leftovers)

    def start(self, spec: ChildSpec, told: Told) -> "_GuardedChild":
        child = _GuardedChild(self, spec, told)
        self._running[child.pid] = child
        self._guard.tell("+", child.pid)
        return child

    def forget(self, pid: int) -> None:
        """A child has been reaped."""
        self._running.pop(pid, None)
        self._guard.tell("-", pid)

    def look(self) -> None:
        """Replace a guard that was killed, and name children that were stopped for too long."""
        if not self._guard.alive:
            log.warning("the guard process died; a new one takes over")
            self._guard = _Guard(self._leftovers)
            for group in self._running:
                self._guard.tell("+", group)
        now = time.monotonic()
        stopped = stopped_processes(self._running)
        for child in self._running.values():
            pid: int | None = stopped.get(child.pid)
            stopped_s = child.stopped.look(now if pid is None else None, now)
            # Whatever its phase: it has no heartbeat that tells.
            if pid is not None and stopped_s > self._stopped_deadline_s:
                who = "" if pid == child.pid else f"{what_runs(pid)} is "
                child.told.stopped(f"{who}stopped (SIGSTOP) for {stopped_s:.0f} s")

    def on_lost(self, tell: Callable[[str], None]) -> None:
        """This host cannot be lost to itself."""

    def close(self) -> None:
        self._guard.close()


class _GuardedChild(RunningChild):
    """A child whose group the guard kills if nobody reaps it."""

    def __init__(self, host: LocalHost, spec: ChildSpec, told: Told) -> None:
        super().__init__(spec, on_exit=told.exited, on_healthy=told.healthy, on_silent=told.silent)
        self.told = told
        self._host = host

    def reap(self) -> None:
        super().reap()
        self._host.forget(self.pid)
