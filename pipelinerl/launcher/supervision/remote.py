"""Another host, as the supervisor sees it: calls of its agent, and a thread that fetches what happens there.

How calls travel is the backend's; this file knows none. A host whose agent does not answer for
`LOST_AFTER_S` is lost for good: the agent, if it lives, kills its children soon after.
"""

import itertools
import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

from pipelinerl.base.waits import StallDetector
from pipelinerl.launcher.supervision.spec import ChildSpec, Tell

POLL_S = 5.0
LOST_AFTER_S = 20.0
"""Less than the time after which an agent gives its launcher up, so that both never act at once."""
CALL_S = 5.0
_RETRY_S = 0.5


class Ask(Protocol):
    """Calls a method of a host's agent. TimeoutError without an answer in time, ConnectionError, which says
    why, if the agent does not exist any more."""

    def __call__(self, method: str, *arguments: Any, timeout_s: float) -> Any: ...


class RemoteHost:
    """Children on another host; `label` names it in messages."""

    def __init__(self, label: str, ask: Ask, lost_after_s: float = LOST_AFTER_S) -> None:
        self._label, self._ask, self._lost_after_s = label, ask, lost_after_s
        self._keys = itertools.count()
        self._tells: dict[int, Tell] = {}
        self._lost: str | None = None
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, name=f"poll-{label}", daemon=True)
        self._poller.start()

    def _poll(self) -> None:
        after = answers = 0
        # A launcher that was stopped itself and goes on asks again, before it calls the host lost.
        silence = StallDetector(0, time.monotonic(), longest_s=2 * POLL_S + _RETRY_S)
        while not self._closing.is_set():
            left_s = self._lost_after_s - silence.look(answers, time.monotonic())
            try:
                if left_s <= 0:
                    raise ConnectionError(f"no answer for {self._lost_after_s:g} s")
                events = self._ask("events", POLL_S, after, timeout_s=min(2 * POLL_S, left_s))
            except TimeoutError:
                self._closing.wait(_RETRY_S)
                continue
            except ConnectionError as error:
                self._lost = f"{self._label} is lost: {error}"
                return
            answers += 1
            for number, key, news in events:
                after = number
                self._tells[key](news)

    def start(self, spec: ChildSpec, tell: Tell) -> "RemoteChild":
        key = next(self._keys)
        self._tells[key] = tell
        return RemoteChild(spec, self.call("start", key, spec) or 0, self, key)

    def call(self, method: str, *arguments: Any, timeout_s: float = CALL_S) -> Any:
        """The agent's answer; None without one, because the poll finds out what that means."""
        if self._lost is not None:
            return None
        try:
            return self._ask(method, *arguments, timeout_s=timeout_s)
        except (TimeoutError, ConnectionError):
            return None

    def look(self) -> str | None:
        return self._lost

    def close(self) -> None:
        self._closing.set()
        self.call("close")
        self._poller.join(2 * POLL_S)


@dataclass
class RemoteChild:
    """One start of a child on another host."""

    spec: ChildSpec
    pid: int
    """On that host; 0 if its agent did not say."""
    host: RemoteHost
    key: int

    def terminate(self) -> None:
        self.host.call("terminate", self.key)

    def kill(self) -> None:
        self.host.call("kill", self.key)

    def wait_until_gone(self, deadline_s: float) -> bool:
        # Nobody can be asked about a lost host; what is left there ends by itself.
        return self.host.call("gone", self.key, deadline_s, timeout_s=deadline_s + CALL_S) is not False
