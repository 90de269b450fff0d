"""The update protocol with one engine: where it stands, how long each step took, what went wrong."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from pipelinerl.base import faults
from pipelinerl.base.http import PREPARE_ROUTE, CallFailed, EngineConnection, call, encode
from pipelinerl.inference.vllm import PauseRoutes
from pipelinerl.weights.send.base import TransportError

log = logging.getLogger(__name__)
T = TypeVar("T")
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


class Exchange:
    """The steps of an update with one engine, over one connection; `transfer` has their order.

    Every method records a failure in `error` instead of raising it. An engine that was started and has not
    `finished` may hold half a model.
    """

    def __init__(self, url: str, deadlines: PublishDeadlines, routes: PauseRoutes) -> None:
        self.url = url
        self.step = ""
        self.seconds: dict[str, float] = {}
        self.error: CallFailed | None = None
        self.paused_at = 0.0
        """When the pause was asked for; 0 if it was not granted."""
        self.paused_s = 0.0
        self.finished = False
        """The engine has confirmed the new version."""
        self.was_cut = False
        self.silent = False
        """The last call had no answer, and not because it was cut."""
        self._deadlines, self._routes = deadlines, routes
        self._connection = EngineConnection(url)

    def prepare(self, update_body: bytes, deadline_s: float) -> None:
        """Let the engine read the version while it still generates.

        What it refuses here it refuses again in its update, which decides what becomes of it.
        """
        self._do("prepare", PREPARE_ROUTE, deadline_s, update_body)
        if self.error is not None and self.error.status is not None:
            log.warning("%s cannot prepare its update: %s", self.url, self.error)
            self.error = None

    def pause(self) -> None:
        """Step 1. The connection is opened before the clock starts."""
        self.step = "pause"
        try:
            self._connection.open(self._deadlines.pause_s)
        except CallFailed as error:
            self.error = error
            return
        self.paused_at = time.perf_counter()
        if not self._do("pause", self._routes.pause, self._deadlines.pause_s, tries=TRIES):
            self.paused_at = 0.0

    def start(self, paused: bool = True) -> None:
        """Step 2. Once, and right after a granted pause where one is needed, or nothing is sent.

        vLLM would not survive it: its stock back-ends take the weights away until the update has finished.
        """
        if paused and (self.step != "pause" or not self.paused_at):
            self.error = self.error or CallFailed(
                None, f"start after {self.step or 'nothing'}, not after a granted pause; nothing was sent"
            )
            return
        self._do("start", "/start_weight_update", self._deadlines.start_s)

    def complete(self, update_body: bytes, version: int, update_deadline_s: float) -> None:
        """Steps 3 to 5 of a paused engine, unless an earlier one failed."""
        if self.error is not None:
            return
        faults.hit("finetune:mid_update")
        if self._do("update", "/update_weights", update_deadline_s, update_body):
            self._confirm(version)

    def receive(self, update_body: bytes, deadline_s: float, arrived: Callable[[], bool]) -> None:
        """Step 3 of an engine that goes on generating: it answers at once and receives beside that."""
        if self.error is not None:
            return
        faults.hit("finetune:mid_update")
        started = time.perf_counter()
        if not self._do("update", "/update_weights", deadline_s, update_body):
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

    def place(self, version: int) -> None:
        """What is left for an engine that has received a version: pause, finish, resume."""
        self.pause()
        if self.error is None:
            self._confirm(version)

    def stop(self) -> None:
        """Keep an engine that cannot be updated from serving, if it still answers soon; `error` stays.

        Nobody waits for one that is silent: it has cost a deadline already. If it hangs, it finds the call
        when it goes on.
        """
        if self.silent:
            in_thread(call, "POST", self.url, self._routes.pause, self._deadlines.health_s)
            return
        said, step = self.error, self.step
        self._connection.close()  # it may have been cut
        self._do("pause", self._routes.pause, self._deadlines.health_s)
        self.error, self.step = said, step

    def _confirm(self, version: int) -> None:
        label = encode({"weight_version": str(version)})
        if self._do("finish", "/finish_weight_update", self._deadlines.finish_s, label):
            self.finished = True
            self.resume()

    def resume(self) -> None:
        """Step 5; also after a pause that led to nothing."""
        self._do("resume", self._routes.resume, self._deadlines.resume_s, tries=TRIES)
        self.paused_s = time.perf_counter() - self.paused_at

    def cut(self) -> None:
        """Make a call under way fail at once, because another engine or the sender failed."""
        self.was_cut = True
        self._connection.cut()

    def close(self) -> None:
        self._connection.close()

    def _do(
        self, step: str, path: str, deadline_s: float, body: bytes | None = None, *, tries: int = 1
    ) -> bool:
        """One call; True on 200. An HTTP error is tried again `tries` times, a lost connection is not."""
        self.step, self.silent, started = step, False, time.perf_counter()
        for attempt in range(1, tries + 1):
            try:
                self._connection.call("POST", path, deadline_s, body)
                self.seconds[step] = time.perf_counter() - started
                return True
            except CallFailed as error:
                if error.status is None or attempt == tries:
                    self.error, self.silent = error, error.status is None and not self.was_cut
                    return False
        return False


def in_thread(work: Callable[..., T], *arguments: Any) -> Future[T]:
    """Run `work` in a daemon thread of its own: one that hangs for ever does not keep the process alive."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as error:  # handed to whoever asks the future
            future.set_exception(error)

    threading.Thread(target=run, name=f"publish-{getattr(work, '__name__', 'step')}", daemon=True).start()
    return future
