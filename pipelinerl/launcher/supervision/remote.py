"""Another host, as the supervisor sees it: calls of its agent, and a thread that fetches what happens there.

How calls travel is the backend's; this file knows none. A host whose agent does not answer for
`LOST_AFTER_S` is lost for good: the agent, if it lives, kills its children soon after.
"""

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from pipelinerl.launcher.supervision.host import Told
from pipelinerl.launcher.supervision.spec import ChildSpec

POLL_S = 5.0
LOST_AFTER_S = 20.0
"""Less than the time after which an agent gives its launcher up, so that both never act at once."""
_CALL_S = 5.0
_RETRY_S = 0.5


class HostSilent(Exception):
    """A call of the agent was not answered in time."""


class HostGone(Exception):
    """The agent does not exist any more; the message says why."""


class Ask(Protocol):
    """Calls a method of a host's agent. Raises HostSilent or HostGone."""

    def __call__(self, method: str, *arguments: Any, timeout_s: float) -> Any: ...


class RemoteHost:
    """Children on another host; `label` names it in messages."""

    def __init__(self, label: str, ask: Ask, lost_after_s: float = LOST_AFTER_S) -> None:
        self._label, self._ask, self._lost_after_s = label, ask, lost_after_s
        self._keys = itertools.count()
        self._children: dict[int, RemoteChild] = {}
        self._lock = threading.Lock()
        self._lost: str | None = None
        self._tell_lost: Callable[[str], None] | None = None
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, name=f"poll-{label}", daemon=True)
        self._poller.start()

    def _poll(self) -> None:
        after, answered = 0, time.monotonic()
        while not self._closing.is_set():
            left_s = answered + self._lost_after_s - time.monotonic()
            if left_s <= 0:
                self._is_lost(f"no answer for {self._lost_after_s:g} s")
                return
            try:
                events = self._ask("events", POLL_S, after, timeout_s=min(2 * POLL_S, left_s))
            except HostSilent:
                self._closing.wait(_RETRY_S)
                continue
            except HostGone as error:
                self._is_lost(str(error))
                return
            answered = time.monotonic()
            for number, key, kind, what in events:
                after = number
                self._children[key].tell(kind, what)

    def _is_lost(self, why: str) -> None:
        if self._closing.is_set():
            return
        with self._lock:
            self._lost = f"{self._label} is lost: {why}"
            if self._tell_lost is not None:
                self._tell_lost(self._lost)

    def on_lost(self, tell: Callable[[str], None]) -> None:
        with self._lock:
            self._tell_lost = tell
            if self._lost is not None:
                tell(self._lost)

    def start(self, spec: ChildSpec, told: Told) -> "RemoteChild":
        key = next(self._keys)
        child = self._children[key] = RemoteChild(spec, told, self, key)
        child.pid = self.call("start", key, spec) or 0
        return child

    def call(self, method: str, *arguments: Any, timeout_s: float = _CALL_S) -> Any:
        """The agent's answer; None without one, because the poll finds out what that means."""
        if self._lost is not None:
            return None
        try:
            return self._ask(method, *arguments, timeout_s=timeout_s)
        except (HostSilent, HostGone):
            return None

    def look(self) -> None:
        """The agent looks for itself."""

    def close(self) -> None:
        self._closing.set()
        self.call("close")
        self._poller.join(2 * POLL_S)


class RemoteChild:
    """One start of a child on another host; its agent reaps it."""

    def __init__(self, spec: ChildSpec, told: Told, host: RemoteHost, key: int) -> None:
        self.spec, self._told, self._host, self._key = spec, told, host, key
        self.pid = 0
        """On that host; 0 if the agent did not say."""
        self._words = ""

    def tell(self, kind: str, what: Any) -> None:
        """Pass on an event of the agent."""
        if kind == "exited":
            code, self._words = what
            self._told.exited(code)
        elif kind == "healthy":
            self._told.healthy()
        else:
            getattr(self._told, kind)(what)

    def terminate(self) -> None:
        self._host.call("terminate", self._key)

    def kill(self) -> None:
        self._host.call("kill", self._key)

    def reap(self) -> None:
        """Done there."""

    def wait_until_gone(self, deadline_s: float) -> bool:
        # Nobody can be asked about a lost host; what is left there ends by itself.
        return self._host.call("gone", self._key, deadline_s, timeout_s=deadline_s + _CALL_S) is not False

    def last_words(self) -> str:
        return self._words
