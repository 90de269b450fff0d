"""The HTTP steps of a weight update with one engine: their conditions, deadlines and failures.

`version_update` calls them for all engines at the same time, in one of two orders:

    received in the pause:  [prepare] pause start update finish resume
    received ahead:         start update (arrived) pause finish resume

What a failure leaves behind: at prepare or pause an engine that can go on with its old weights; at start, update
or finish one that may hold half a model and is not `finished`, to be replaced and never resumed; at resume one
that is paused with the new version.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass

from pipelinerl.base import faults
from pipelinerl.base.http import CallFailed, Connection, call, encode
from pipelinerl.base.threads import in_thread
from pipelinerl.inference.vllm import PauseRoutes
from pipelinerl.weights.send.transport import TransportError
from pipelinerl.weights.wire import PREPARE_ROUTE

log = logging.getLogger(__name__)
TRIES = 3
"""Attempts at the idempotent steps, pause and resume, after an HTTP error."""
ARRIVED_INTERVAL_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishDeadlines:
    """Seconds each step may take."""

    health_s: float = 2.0
    init_s: float = 900.0
    pause_s: float = 30.0
    start_s: float = 30.0
    update_s: float = 30.0
    """Beside one second for each GB."""
    finish_s: float = 60.0
    resume_s: float = 10.0
    parity_s: float = 60.0
    abort_s: float = 10.0
    """From aborting a transfer until its sender must be free."""


class EngineUpdate:
    """An update of one engine, over one connection; a failed step is recorded in `error`, not raised."""

    def __init__(
        self,
        url: str,
        deadlines: PublishDeadlines,
        routes: PauseRoutes,
        *,
        ahead: bool = False,
        can_prepare: bool = False,
    ) -> None:
        self.url = url
        self.step = ""
        """The last one begun."""
        self.seconds: dict[str, float] = {}
        """Of each step that succeeded."""
        self.error: CallFailed | None = None
        self.paused_at = 0.0
        """When the pause was asked for; 0 if it was not granted."""
        self.paused_s = 0.0
        self.finished = False
        """The engine has confirmed the new version."""
        self.was_cut = False
        self._silent = False
        """The last call had no answer, and not because it was cut."""
        self._ahead, self._can_prepare = ahead, can_prepare
        self._deadlines, self._routes = deadlines, routes
        self._connection = Connection(url)

    @property
    def lost(self) -> bool:
        """Whether the step that failed had no answer; otherwise the engine runs and has refused it."""
        return self.error is not None and self.error.status is None

    def prepare(self, body: bytes, deadline_s: float) -> None:
        """Let an engine that offers it read the version while it generates."""
        if self._can_prepare and not self._do("prepare", PREPARE_ROUTE, deadline_s, body) and not self.lost:
            # What it refuses here it refuses again in its update, which decides what becomes of it.
            log.warning("%s cannot prepare its update: %s", self.url, self.error)
            self.error = None

    def pause(self) -> None:
        """Stop sampling between two steps."""
        self.step = "pause"
        # Connected before the clock starts: until the pause the engine generates, however late it accepts.
        try:
            self._connection.open(self._deadlines.pause_s)
        except CallFailed as error:
            self.error = error
            return
        self.paused_at = time.perf_counter()
        if not self._do("pause", self._routes.pause, self._deadlines.pause_s, tries=TRIES):
            self.paused_at = 0.0

    def start(self) -> None:
        """Begin the update; without a pause only where the engine receives ahead, and never twice."""
        # vLLM's stock back-ends take the parameters away until finish: a step in between kills the engine, so
        # nothing may be sent unless the pause just before was granted.
        if not self._ahead and (self.step != "pause" or not self.paused_at):
            reason = f"start after {self.step or 'nothing'}, not after a granted pause; nothing was sent"
            self.error = self.error or CallFailed(None, reason)
            return
        self._do("start", "/start_weight_update", self._deadlines.start_s)

    def update_and_finish(self, body: bytes, version: int, deadline_s: float) -> None:
        """What follows start in a paused engine; it answers its update when it has loaded everything."""
        if self.error is not None:
            return
        faults.hit("finetune:mid_update")
        if self._do("update", "/update_weights", deadline_s, body):
            self._finish(version)

    def receive(self, body: bytes, deadline_s: float, arrived: Callable[[], bool]) -> None:
        """The update of an engine that goes on generating: it answers at once and receives beside that."""
        if self.error is not None:
            return
        faults.hit("finetune:mid_update")
        started = time.perf_counter()
        if not self._do("update", "/update_weights", deadline_s, body):
            return
        try:
            while not arrived():
                if time.perf_counter() - started > deadline_s:
                    raise TransportError(f"the version has not arrived within {deadline_s:g} s")
                if self.was_cut:
                    raise TransportError("given up")
                time.sleep(ARRIVED_INTERVAL_S)
        except TransportError as error:
            self.error = CallFailed(None, str(error))
        self.seconds["update"] = time.perf_counter() - started

    def pause_and_finish(self, version: int) -> None:
        """What follows when the version has arrived ahead: all that generation has to stop for."""
        self.pause()
        if self.error is None:
            self._finish(version)

    def stop(self) -> None:
        """Keep an engine whose update has failed from serving, if it still answers soon."""
        pause = in_thread(call, "POST", self.url, self._routes.pause, self._deadlines.health_s)
        # A silent one has cost a deadline already. If it hangs, it finds the call when it goes on.
        if not self._silent:
            wait([pause])

    def resume(self) -> None:
        """Go on generating; also after a pause that led to nothing."""
        self._do("resume", self._routes.resume, self._deadlines.resume_s, tries=TRIES)
        self.paused_s = time.perf_counter() - self.paused_at

    def cut(self) -> None:
        """Make a call under way fail at once, because another engine or the sender failed."""
        self.was_cut = True
        self._connection.cut()

    def close(self) -> None:
        self._connection.close()

    def _finish(self, version: int) -> None:
        # The label changes after the last tensor and before resume: tokens carry the version that sampled them.
        label = encode({"weight_version": str(version)})
        if self._do("finish", "/finish_weight_update", self._deadlines.finish_s, label):
            self.finished = True
            self.resume()

    def _do(
        self, step: str, path: str, deadline_s: float, body: bytes | None = None, *, tries: int = 1
    ) -> bool:
        """One call; True on 200. An HTTP error is tried again `tries` times, a lost connection is not."""
        self.step, self._silent, started = step, False, time.perf_counter()
        for attempt in range(1, tries + 1):
            try:
                self._connection.call("POST", path, deadline_s, body)
                self.seconds[step] = time.perf_counter() - started
                return True
            except CallFailed as error:
                if error.status is None or attempt == tries:
                    self.error, self._silent = error, error.status is None and not self.was_cut
                    break
        return False
