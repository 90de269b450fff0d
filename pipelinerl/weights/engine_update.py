"""The HTTP steps of a weight update with one engine: their conditions, deadlines and failures.

`version_update` calls them for all engines at the same time, in one of two orders:

    received in the pause:  [prepare] pause start update finish resume
    received ahead:         start update (arrived) pause finish resume

A failure before start leaves an engine that can go on with its old weights. One that was started and is not
`finished` may hold half a model: it is never resumed, only replaced.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass

from pipelinerl.base import faults
from pipelinerl.base.http import CallFailed, Connection, call, encode
from pipelinerl.base.threads import in_thread
from pipelinerl.engines.wire import PREPARE_ROUTE
from pipelinerl.weights.engine_state import EngineState
from pipelinerl.weights.refusals import Failure
from pipelinerl.weights.transports.base import TransportError

log = logging.getLogger(__name__)
# Attempts at the idempotent steps, pause and resume, after an HTTP error.
TRIES = 3
ARRIVED_INTERVAL_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishDeadlines:
    """Seconds each step may take."""

    health_s: float = 2.0
    init_s: float = 900.0
    pause_s: float = 30.0
    start_s: float = 30.0
    update_s: float = 30.0  # beside one second for each GB
    finish_s: float = 60.0
    resume_s: float = 10.0
    parity_s: float = 60.0
    abort_s: float = 10.0  # from aborting a transfer until its sender must be free


class EngineUpdate:
    """An update of one engine, over one connection; a failed step is recorded in `error`, not raised."""

    def __init__(self, engine: EngineState, deadlines: PublishDeadlines, ahead: bool = False) -> None:
        """`ahead`: the engine receives while it generates."""
        self.url = engine.url
        self.step = ""
        self.seconds: dict[str, float] = {}
        self.error: CallFailed | None = None
        self.paused_at = 0.0  # when the pause was asked for; 0 if it was not granted
        self.paused_s = 0.0
        self.finished = False  # the engine has confirmed the new version
        self.was_cut = False
        self._said_so = False  # the engine has refused in another way than by an HTTP status
        self._silent = False  # the last call had no answer, and not because it was cut
        self._engine, self._deadlines, self._ahead = engine, deadlines, ahead
        self._connection = Connection(engine.url)

    @property
    def lost(self) -> bool:
        """Whether the step that failed had no answer; otherwise the engine runs and has refused it."""
        return self.error is not None and self.error.status is None

    @property
    def failure(self) -> Failure | None:
        """The step that failed and its cause."""
        if self.error is None:
            return None
        return Failure(self.url, self.step, self.error, answered=self._said_so)

    def prepare(self, body: bytes, deadline_s: float) -> None:
        """Let an engine that offers it read the version while it generates."""
        if PREPARE_ROUTE not in self._engine.offers or self._do("prepare", PREPARE_ROUTE, deadline_s, body):
            return
        # What it refuses here it refuses again in its update, which decides what becomes of it.
        if not self.lost:
            log.warning("%s cannot prepare its update: %s", self.url, self.error)
            self.error = None

    def pause(self) -> None:
        """Stop sampling between two steps."""
        self.step = "pause"
        # Connected before the clock starts: however late a busy engine accepts, it generates until its pause.
        try:
            self._connection.open(self._deadlines.pause_s)
        except CallFailed as error:
            self.error = error
            return
        self.paused_at = time.perf_counter()
        if not self._do("pause", self._engine.routes.pause, self._deadlines.pause_s, tries=TRIES):
            self.paused_at = 0.0

    def start(self) -> None:
        """Begin the update; without a pause only where the engine receives ahead, and never twice."""
        # vLLM's stock back-ends take the parameters away until finish. A forward pass in between kills the
        # engine, so nothing is sent unless the pause just before was granted.
        if not self._ahead and (self.step != "pause" or not self.paused_at):
            reason = f"start after {self.step or 'nothing'}, not after a granted pause; nothing was sent"
            self.error = self.error or CallFailed(None, reason)
            return
        self._do("start", "/start_weight_update", self._deadlines.start_s)

    def update(self, body: bytes, deadline_s: float, arrived: Callable[[], bool]) -> None:
        """Transfer the version; who receives ahead answers at once, and has it when it has `arrived`."""
        if self.error is not None:
            return
        faults.hit("finetune:mid_update")
        started = time.perf_counter()
        if not self._do("update", "/update_weights", deadline_s, body) or not self._ahead:
            return
        try:
            while not arrived():
                if time.perf_counter() - started > deadline_s:
                    self.error = CallFailed(None, f"the version has not arrived within {deadline_s:g} s")
                    break
                if self.was_cut:
                    self.error = CallFailed(None, "given up")
                    break
                time.sleep(ARRIVED_INTERVAL_S)
        except TransportError as error:
            self.error, self._said_so = CallFailed(None, str(error)), True
        self.seconds["update"] = time.perf_counter() - started

    def finish(self, version: int, given_up: bool = False) -> None:
        """Sample from the version that was transferred; `given_up`: another one has cost the update."""
        # Without its finish it has its old weights, but vLLM refuses to start it once more: it is replaced.
        if self._ahead and (given_up or self.error is not None):
            self._stop()
            return
        if self._ahead:
            self.pause()
        if self.error is not None:
            return
        # The label changes after the last tensor and before resume: a token carries the version that made it.
        label = encode({"weight_version": str(version)})
        if self._do("finish", "/finish_weight_update", self._deadlines.finish_s, label):
            self.finished, self._engine.served = True, version
            self.resume()

    def resume(self) -> None:
        """Go on generating; also after a pause that led to nothing."""
        self._do("resume", self._engine.routes.resume, self._deadlines.resume_s, tries=TRIES)
        self.paused_s = time.perf_counter() - self.paused_at

    def cut(self) -> None:
        """Make a call under way fail at once, because another engine or the sender failed."""
        self.was_cut = True
        self._connection.cut()

    def close(self) -> None:
        self._connection.close()

    def _stop(self) -> None:
        """Keep an engine whose update has failed from serving, if it still answers soon."""
        pause = in_thread(call, "POST", self.url, self._engine.routes.pause, self._deadlines.health_s)
        # A silent one has cost a deadline already. If it hangs, it finds the call when it goes on.
        if not self._silent:
            wait([pause])

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
