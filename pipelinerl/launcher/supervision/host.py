"""A host that runs children: this one here, others in `remote.py`. The supervisor knows no difference."""

import contextlib
import logging
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pipelinerl.base import guard
from pipelinerl.launcher.supervision.process import RunningChild, stopped_processes, what_runs
from pipelinerl.launcher.supervision.spec import ChildSpec, Exited, News, Tell, Unwell

log = logging.getLogger(__name__)

_GUARD_END_S = 15.0
STOPPED_DEADLINE_S = 20.0


class Child(Protocol):
    """One started process group."""

    spec: ChildSpec
    pid: int

    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def wait_until_gone(self, deadline_s: float) -> bool: ...


class ChildHost(Protocol):
    """Where children are started. `start` and `look` are called by one thread."""

    def start(self, spec: ChildSpec, tell: Tell) -> Child: ...

    def look(self) -> str | None:
        """Called about once a second; why the host is gone for good, None while it is not."""

    def close(self) -> None:
        """When no child is left."""


class _Guard:
    """The process that cleans up after a supervisor that was killed."""

    def __init__(self, leftovers: Sequence[Path]) -> None:
        self._leftovers = leftovers
        self._process = guard.start(leftovers)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def fileno(self) -> int:
        """Its input, by which a child tells its group before its command runs."""
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def tell(self, sign: str, pgid: int) -> None:
        assert self._process.stdin is not None
        # A guard that was killed a moment ago is replaced in the next step and told everything again; one
        # that was closed kills what is left.
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(f"{sign}{pgid}\n".encode())

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_GUARD_END_S)
        except subprocess.TimeoutExpired:  # somebody stopped it
            log.warning("the guard process did not end within %g s; killing it", _GUARD_END_S)
            self._process.kill()
            self._process.wait()
        if self._process.returncode:  # killed, just now or since it was last looked at
            for folder in self._leftovers:
                guard.remove(str(folder), time.time())


class LocalHost:
    """Children of this process. All methods belong to one thread that lives as long as they do: the kernel
    ends a child with the thread that started it.

    The folders `leftovers` are removed at the end, also after a kill -9 of this process.
    """

    def __init__(
        self, leftovers: Sequence[Path] = (), stopped_deadline_s: float = STOPPED_DEADLINE_S
    ) -> None:
        self._leftovers, self._stopped_deadline_s = leftovers, stopped_deadline_s
        self._running: dict[int, RunningChild] = {}
        self._guarding = threading.Lock()
        self._guard = _Guard(leftovers)

    def start(self, spec: ChildSpec, tell: Tell) -> RunningChild:
        def hear(news: News) -> None:
            if isinstance(news, Exited):
                with self._guarding:  # until it was taken in
                    del self._running[child.pid]
                    self._guard.tell("-", child.pid)
            tell(news)

        with self._guarding:
            child = RunningChild(spec, hear, self._guard.fileno())
            self._running[child.pid] = child
        return child

    def look(self) -> None:
        """Replace a guard that was killed, and name children that were stopped for too long."""
        with self._guarding:
            if not self._guard.alive:
                log.warning("the guard process died; a new one takes over")
                self._guard = _Guard(self._leftovers)
                for group in self._running:
                    self._guard.tell("+", group)
            running = list(self._running.values())
        now = time.monotonic()
        stopped = stopped_processes(child.pid for child in running)
        for child in running:
            pid: int | None = stopped.get(child.pid)
            stopped_s = child.stopped.look(now if pid is None else None, now)
            # Whatever its phase: it has no heartbeat that tells.
            if pid is not None and stopped_s > self._stopped_deadline_s:
                who = "" if pid == child.pid else f"{what_runs(pid)} is "
                child.tell(Unwell(f"{who}stopped (SIGSTOP) for {stopped_s:.0f} s", whatever_phase=True))

    def close(self) -> None:
        self._guard.close()
