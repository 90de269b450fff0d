"""The supervisor's hands on another host: starts, watches and ends children there as the launcher does here.

Backends run one in a process on each host (`launcher/ray_backend.py`) and let a `RemoteHost` call it, from
any thread. Every fork comes from one thread that never ends, because the kernel ends a child with the
thread that started it. What happens to children are events, which the launcher fetches by long polls. If
nobody polls for `ABANDONED_AFTER_S`, the launcher or the way to it is gone and every child is killed.
"""

import fcntl
import logging
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pipelinerl.base.ports import ReservedPorts, is_free_everywhere
from pipelinerl.launcher.supervision.host import STOPPED_DEADLINE_S, LocalHost, Told
from pipelinerl.launcher.supervision.process import RunningChild
from pipelinerl.launcher.supervision.spec import ChildSpec

log = logging.getLogger(__name__)

ABANDONED_AFTER_S = 30.0
OF_OTHER_LAUNCHERS = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun and its kind, or an operator of a cluster, set on each host."""
_LOOK_EVERY_S = 1.0
_KILLED = -9
_SIOCGIFADDR = 0x8915


class Event(NamedTuple):
    """What happened to the start `key`; `number` grows by one, so that none is told twice or not at all."""

    number: int
    key: int
    kind: str
    """A field of `Told`."""
    what: Any
    """A cause; of an exit the code and the last words."""


class HostAgent:
    """`address` is this host's, `cwd` the launcher's working folder."""

    def __init__(
        self,
        address: str,
        cwd: str = ".",
        stopped_deadline_s: float = STOPPED_DEADLINE_S,
        abandoned_after_s: float = ABANDONED_AFTER_S,
    ) -> None:
        forget_other_launchers()
        if os.path.isdir(cwd):  # else `missing` says so
            os.chdir(cwd)
        self._abandoned_after_s = abandoned_after_s
        self._ports = ReservedPorts(free=partial(is_free_everywhere, address=address))
        self._children: dict[int, RunningChild] = {}
        self._events: deque[Event] = deque()
        self._number = 0
        self._news = threading.Condition()
        self._polled = time.monotonic()
        self._closed = threading.Event()
        self._forker = ThreadPoolExecutor(1, "forker")
        self._host = self._forker.submit(LocalHost, (), stopped_deadline_s).result()
        threading.Thread(target=self._watch, name="agent-watch", daemon=True).start()

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK_EVERY_S):
            silent_s = time.monotonic() - self._polled
            if silent_s > self._abandoned_after_s:
                log.error("nobody asked for %.0f s; every child is killed", silent_s)
                self.close()
            else:
                self._forker.submit(self._host.look)

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Which of the launcher's paths are not here."""
        return [path for path in paths if not os.path.exists(path)]

    def read_back(self, path: Path, deadline_s: float) -> str | None:
        """The text of a file that the launcher has just written; None if it does not appear in time."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            try:
                return path.read_text()
            except OSError:
                time.sleep(0.1)
        return None

    def take_port(self, port: int) -> bool:
        """Whether a port is free here; it is kept until this agent ends."""
        return self._ports.take(port)

    def start(self, key: int, spec: ChildSpec) -> int:
        """Start a child; its pid. `key` names this start from now on."""
        told = Told(
            exited=lambda code: self._exited(key, code),
            healthy=lambda: self._tell(key, "healthy", None),
            silent=lambda cause: self._tell(key, "silent", cause),
            stopped=lambda cause: self._tell(key, "stopped", cause),
        )

        def fork() -> int:
            if self._closed.is_set():
                self._tell(key, "exited", (_KILLED, ""))
                return 0
            child = self._children[key] = self._host.start(spec, told)
            return child.pid

        return self._forker.submit(fork).result()

    def _exited(self, key: int, code: int) -> None:
        if not self._closed.is_set():
            self._forker.submit(self._reap, key, code)

    def _reap(self, key: int, code: int) -> None:
        child = self._children[key]
        child.reap()
        self._tell(key, "exited", (code, child.last_words()))

    def _tell(self, key: int, kind: str, what: Any) -> None:
        with self._news:
            self._number += 1
            self._events.append(Event(self._number, key, kind, what))
            self._news.notify_all()

    def events(self, timeout_s: float, after: int) -> list[Event]:
        """What happened behind event number `after`, which has been taken in; waits for the first one."""
        self._polled = time.monotonic()
        with self._news:
            while self._events and self._events[0].number <= after:
                self._events.popleft()
            self._news.wait_for(lambda: self._events or self._closed.is_set(), timeout_s)
            self._polled = time.monotonic()
            return list(self._events)

    def terminate(self, key: int) -> None:
        """Ask a child to end."""
        if key in self._children:
            self._children[key].terminate()

    def kill(self, key: int) -> None:
        """Kill a child's group; its exit is told, also of one whose start never arrived."""
        child = self._children.get(key)
        if child is None:
            self._tell(key, "exited", (_KILLED, ""))
        elif child.alive:
            child.kill()

    def gone(self, key: int, deadline_s: float) -> bool:
        """Whether nothing of a child's group is alive any more within `deadline_s` seconds."""
        return key not in self._children or self._children[key].wait_until_gone(deadline_s)

    def close(self) -> None:
        """Kill what is left; nothing can be started any more."""
        if self._closed.is_set():
            return
        self._closed.set()
        with self._news:
            self._news.notify_all()
        for child in list(self._children.values()):
            if child.alive:
                child.kill()
        self._forker.submit(self._host.close).result()
        self._ports.close()


def forget_other_launchers() -> None:
    """Processes of the run would take such variables for ranks of their own."""
    for name in OF_OTHER_LAUNCHERS:
        os.environ.pop(name, None)


def facts(address: str) -> dict[str, Any]:
    """Name, cores and network interface of this host, as `Host` has them."""
    cores = len(os.sched_getaffinity(0))
    return {"name": socket.gethostname(), "cores": cores, "interface": interface_of(address)}


def interface_of(address: str) -> str | None:
    """The network interface that has an IPv4 address; None if none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            asked = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
