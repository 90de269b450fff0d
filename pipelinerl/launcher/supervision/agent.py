"""The supervisor's hands on another host: starts, watches and ends children there as the launcher does here.

Backends run one in a process on each host (`launcher/ray_backend.py`) and let a `RemoteHost` call it, from
any thread. Every start and kill comes from one thread that never ends: the kernel ends a child with the
thread that started it, and nothing overtakes. What happens to children are events, which the launcher fetches
by long polls. If nobody polls for `ABANDONED_AFTER_S`, the launcher or the way to it is gone: every child is
killed. A closed agent ends its own process, because the backend may not: Ray's head or node may be gone.
"""

import fcntl
import hashlib
import logging
import os
import platform
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipelinerl.base.digests import model_digest
from pipelinerl.base.files import is_there
from pipelinerl.base.ports import ReservedPorts, is_free_everywhere
from pipelinerl.config.installed import PACKAGE
from pipelinerl.launcher.supervision.host import LocalHost
from pipelinerl.launcher.supervision.process import RunningChild
from pipelinerl.launcher.supervision.spec import ABANDONED_AFTER_S, ChildSpec, Exited, News

log = logging.getLogger(__name__)

STAYS_S = 10.0
"""So long a closed agent waits for its backend to end it, so that whoever closed it has an answer."""
OF_OTHER_LAUNCHERS = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun and its kind, or an operator of a cluster, set on each host."""
COMPARED = ("torch", "transformers", "accelerate", "vllm", "numpy", "msgspec", "redis")
"""Packages whose version has to be the same on every host."""
_LOOK_EVERY_S = 1.0
_NOT_STARTED, _KILLED = 127, -9
_SIOCGIFADDR = 0x8915


Event = tuple[int, int, News]
"""A number that grows by one, so that none is told twice or not at all; the key of a start; what happened."""


class HostAgent:
    """`address` is this host's, `cwd` the launcher's working folder, `env` what children have beside this
    process's environment. `end` is called `STAYS_S` after this was closed, and has to end the process."""

    def __init__(
        self,
        address: str,
        cwd: str = ".",
        env: Mapping[str, str] = MappingProxyType({}),
        abandoned_after_s: float = ABANDONED_AFTER_S,
        *,
        end: Callable[[], object] = lambda: None,
    ) -> None:
        forget_other_launchers()
        os.environ.update(env)
        if os.path.isdir(cwd):  # else `missing` says so
            os.chdir(cwd)
        self._abandoned_after_s, self._end = abandoned_after_s, end
        self._ports = ReservedPorts(free=partial(is_free_everywhere, address=address))
        self._children: dict[int, RunningChild] = {}
        self._never: set[int] = set()  # starts that were killed before they arrived
        self._events: deque[Event] = deque()
        self._number = 0
        self._news = threading.Condition()
        self._polled = time.monotonic()
        self._closed, self._nothing_left = threading.Event(), threading.Event()
        self._forker = ThreadPoolExecutor(1, "forker")
        self._host = self._forker.submit(LocalHost).result()
        threading.Thread(target=self._watch, name="agent-watch", daemon=True).start()

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK_EVERY_S):
            silent_s = time.monotonic() - self._polled
            if silent_s > self._abandoned_after_s:
                log.error("nobody asked for %.0f s; every child is killed", silent_s)
                self.close()
            else:
                self._forker.submit(self._host.look)
        self._nothing_left.wait()
        time.sleep(STAYS_S)
        self._end()

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Which of the launcher's paths are not here."""
        return [path for path in paths if not os.path.exists(path)]

    def model(self, folder: str) -> str:
        """`model_digest` of a folder, to be compared with the launcher's."""
        return model_digest(folder)

    def shares(self, file: Path, deadline_s: float) -> bool:
        """Whether a file that the launcher has just written appears in time, in a folder to write into."""
        end = time.monotonic() + deadline_s
        while not is_there(file) and time.monotonic() < end:
            time.sleep(0.1)
        return file.exists() and os.access(file.parent, os.W_OK)

    def take_port(self, port: int) -> bool:
        """Whether a port is free here; it is kept until this agent ends."""
        return self._ports.take(port)

    def start(self, key: int, spec: ChildSpec) -> int:
        """Start a child; its pid. `key` names this start from now on."""
        return self._forker.submit(self._start, key, spec).result()

    def _start(self, key: int, spec: ChildSpec) -> int:
        if self._closed.is_set():
            self._kill(key)
        if key in self._never:
            return 0
        try:
            child = self._children[key] = self._host.start(spec, partial(self._tell, key))
        except OSError as error:  # such as a folder of logs that cannot be written
            self._tell(key, Exited(_NOT_STARTED, str(error)))
            return 0
        return child.pid

    def _tell(self, key: int, news: News) -> None:
        with self._news:
            self._number += 1
            self._events.append((self._number, key, news))
            self._news.notify_all()

    def events(self, timeout_s: float, after: int) -> list[Event]:
        """What happened behind event number `after`, which has been taken in; waits for the first one."""
        self._polled = time.monotonic()
        with self._news:
            while self._events and self._events[0][0] <= after:
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
        self._forker.submit(self._kill, key)

    def _kill(self, key: int) -> None:
        if key in self._children:
            self._children[key].kill()
        elif key not in self._never:
            self._never.add(key)
            self._tell(key, Exited(_KILLED))

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
            child.kill()
        self._forker.submit(self._host.close).result()
        self._ports.close()
        self._nothing_left.set()


def forget_other_launchers() -> None:
    """Processes of the run would take such variables for ranks of their own."""
    for name in OF_OTHER_LAUNCHERS:
        os.environ.pop(name, None)


def facts(address: str) -> dict[str, Any]:
    """Name, address, cores and network interface of this host, as `Host` has them."""
    own = {"name": socket.gethostname(), "address": address, "interface": interface_of(address)}
    return {**own, "cores": len(os.sched_getaffinity(0))}


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str | None:
    """What two hosts do not have alike of their `software`, for people; None if all is."""
    for what in sorted({*here, *there}):
        ours, theirs = (one.get(what, "not installed") for one in (here, there))
        if ours != theirs:
            return f"{what} is {theirs} there and {ours} with the launcher; every host needs the same"
    return None


@cache  # the launcher compares each host with its own
def software() -> Mapping[str, str]:
    """What has to be the same on every host of a run, with its version."""
    found = {"Python": platform.python_version(), "the code of pipelinerl": _digest(PACKAGE)}
    for name in COMPARED:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _digest(folder: Path) -> str:
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


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
