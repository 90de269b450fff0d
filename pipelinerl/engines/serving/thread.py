"""The engine thread: it alone touches back end, queue and update state; everybody else hands it work.

Between two steps it runs the commands that came in (new requests, aborts, pause, weights, resume), so no
forward pass ever sees half a change. Results go back through the callbacks given with the work.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from pipelinerl.engines.serving.backend import Backend, Drawn
from pipelinerl.engines.serving.metrics import EngineMetrics
from pipelinerl.engines.serving.sequence import Request, Result
from pipelinerl.engines.serving.update_state import OutOfOrder, UpdateState
from pipelinerl.engines.serving.weight_updates import WeightUpdates

log = logging.getLogger(__name__)
T = TypeVar("T")
# Longest wait for the end of the current step; far above any step of a model that belongs on a CPU.
COMMAND_DEADLINE_S = 60.0


class EngineEnded(RuntimeError):
    """The engine thread has ended, so that a command cannot be carried out (HTTP 503)."""


class Engine:
    """Runs requests on a back end; `start` and `stop` frame its thread."""

    def __init__(
        self,
        backend: Backend,
        *,
        on_results: Callable[[list[Result]], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        """What the engine thread calls: `on_results` after a step or an abort, `on_failed` when it died."""
        self.metrics = EngineMetrics(backend.settings.started)
        self.update = UpdateState()
        # Set when the thread died; the engine serves nothing from then on.
        self.failure: BaseException | None = None
        self._backend, self._queue = backend, backend.queue
        # Takes new weights, from threads of the callers'.
        self.weights = WeightUpdates(
            backend.weights, self.update, self._wait_between_steps, self._queue.weights_changed
        )
        self._requests: dict[str, Request] = {}
        # Pauses of mode `wait` that are to be answered when the last running sequence has ended.
        self._draining: list[Future[None]] = []
        self._on_results = on_results
        self._on_failed = on_failed
        # None is the order to end.
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._ended = False
        # A daemon: when `stop` has given up on a step that hangs, the process can still end.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, deadline_s: float = 5.0) -> None:
        """End the thread after the current step; requests in flight are dropped."""
        self._inbox.put(None)
        self._thread.join(deadline_s)

    @property
    def healthy(self) -> bool:
        """True while the engine can generate (a pause does not count as illness)."""
        return self.failure is None and self._thread.is_alive() and self.update.state != "broken"

    def submit(self, request: Request) -> None:
        """Queue a request; it comes back through `on_results`."""
        self._hand_over(lambda: self._admit(request))

    def abort(self, request_ids: list[str]) -> Future[int]:
        """End these requests (all if empty) with reason `abort`; the number that were in flight."""
        return self.between_steps(lambda: self._abort(request_ids))

    def pause(self, mode: str, clear_cache: bool) -> Future[Future[None]]:
        """Stop sampling. The inner future is done when the pause is complete (mode `wait`: drained)."""
        return self.between_steps(lambda: self._pause(mode, clear_cache))

    def reset_prefix_cache(self) -> Future[None]:
        """Empty the prefix cache; running requests keep what they have."""
        return self.between_steps(self._queue.clear_prefixes)

    def resume(self) -> Future[None]:
        """Go on sampling."""
        return self.between_steps(self._resume)

    def _wait_between_steps(self, work: Callable[[], T]) -> T:
        try:
            return self.between_steps(work).result(COMMAND_DEADLINE_S)
        except TimeoutError:
            reason = f"the engine thread did not answer within {COMMAND_DEADLINE_S:g} s"
            raise TimeoutError(reason) from None

    def between_steps(self, function: Callable[[], T]) -> Future[T]:
        """Run a function in the engine thread, between two forward passes; its result or its error."""
        future: Future[T] = Future()

        def command() -> None:
            # A future whose caller was cancelled would raise InvalidStateError on its result, here in the
            # engine thread.
            if not future.set_running_or_notify_cancel():
                return  # the request that asked for it is gone
            try:
                if self._ended:
                    raise EngineEnded("the engine has ended")
                future.set_result(function())
            except Exception as error:  # handed to the caller, who raises it
                future.set_exception(error)

        self._hand_over(command)
        return future

    def _hand_over(self, command: Callable[[], None]) -> None:
        # In this order: a command that is put after the thread's last look finds `_ended` set, one before is
        # refused by the thread. A caller never waits for a thread that is gone.
        self._inbox.put(command)
        if self._ended:
            self._refuse_commands()

    def _refuse_commands(self) -> None:
        """Commands that find `_ended` set only tell whoever waits for them."""
        with contextlib.suppress(queue.Empty):
            while True:
                if (command := self._inbox.get_nowait()) is not None:
                    command()

    # Everything below runs in the engine thread.

    def _run(self) -> None:
        try:
            self._backend.begin()
            while self._take_commands():
                if self.update.serving:
                    self._step()
        # Nobody else notices that this thread is gone. Requests are told before the server, which closes its
        # connections when it hears of it.
        except BaseException as error:
            log.exception("engine thread failed")
            self.failure = error
            self._fail_everything(f"engine failed: {type(error).__name__}: {error}")
            self._on_failed(error)
        finally:
            self._ended = True
            self._refuse_commands()

    def _take_commands(self) -> bool:
        """Run waiting commands; block for one if there is nothing to generate. False at the end."""
        # Blocks only where there is nothing to do. After the first command whatever else waits is run as
        # well, so that all of it is in force in the next step.
        idle = not self.update.serving or not (self._queue.running or self._queue.waiting)
        while True:
            try:
                command = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            idle = False

    def _step(self) -> None:
        # A pause of mode `wait` would never be complete if waiting sequences took the slots that become free.
        started = time.perf_counter()
        drawn = self._backend.step(admit=not self._draining)
        if drawn is None:
            return
        pieces, ended = self._append(drawn)
        self.metrics.steps += 1
        self.metrics.step_seconds += time.perf_counter() - started
        self._hand_out(pieces, ended)
        self._end_drain()

    def _append(self, drawn: Sequence[Drawn]) -> tuple[list[Result], list[Request]]:
        """Take the tokens of a step: those that are to be streamed, and the requests that ended."""
        # Read by the thread that ran the forward pass: no update lies between a token and its version.
        version = self.update.version
        ended: dict[str, Request] = {}
        pieces: list[Result] = []
        for one, token, logprob in drawn:
            request = one.request
            if not logprob > -float("inf"):  # NaN or an impossible token: the weights are not numbers
                request.error = f"the model gave log-probability {logprob} with weights {version}"
            else:
                one.append(token, logprob, version)
                if request.streams:
                    pieces.append((request, one.piece(one.output_length - 1)))
            # The slot is free for the next step, not only when the other sequences of the request end.
            if request.error or one.finish_reason:
                self._queue.remove(one)
                if request.finished:
                    ended[request.request_id] = request
        self.metrics.generation_tokens += len(drawn)
        return pieces, list(ended.values())

    def _admit(self, request: Request) -> None:
        if self._ended:  # nobody is there who would sample it, and the server is about to end
            return
        self._requests[request.request_id] = request
        self.metrics.prompt_tokens += request.prompt_length
        self._queue.waiting.extend(request.sequences)
        self._observe()

    def _hand_out(self, pieces: list[Result], ended: list[Request]) -> None:
        """Free the slots of requests that ended, count how, and tell whoever waits."""
        for request in ended:
            del self._requests[request.request_id]
            for sequence in request.sequences:
                self._queue.remove(sequence)
            reason = "error" if request.error else request.sequences[0].finish_reason or "abort"
            self.metrics.finished[reason] += 1
        self._observe()
        # Counted before the answers go out: whoever has one finds it in `/metrics`.
        if pieces or ended:
            self._on_results([*pieces, *((request, None) for request in ended)])

    def _abort(self, request_ids: list[str]) -> int:
        ended = [one for name, one in self._requests.items() if not request_ids or name in request_ids]
        pieces: list[Result] = []
        for request in ended:
            # Sequences of the request that had ended keep their reason.
            for sequence in (one for one in request.sequences if one.finish_reason is None):
                sequence.finish_reason = "abort"
                # What of its text was held back.
                if request.streams:
                    pieces.append((request, sequence.piece(sequence.output_length)))
        self._hand_out(pieces, ended)
        self._end_drain()
        return len(ended)

    def _pause(self, mode: str, clear_cache: bool) -> Future[None]:
        done: Future[None] = Future()
        if clear_cache:
            self._queue.clear_prefixes()
        # In a pause already, nothing runs that could come to its end.
        if mode == "wait" and self.update.serving:
            self._draining.append(done)
            self._end_drain()
            return done
        self.update.pause()
        if mode == "abort":
            self._abort([])
        # After an abort no sequence is left that would have to be computed again.
        elif mode == "keep" and clear_cache:
            self._queue.forget_computed()
        done.set_result(None)
        return done

    def _end_drain(self) -> None:
        """Answer pauses of mode `wait` once nothing runs any more."""
        if self._draining and not self._queue.running:
            self.update.pause()
            for future in self._draining:
                future.set_result(None)
            self._draining.clear()

    def _resume(self) -> None:
        self.update.resume()
        for future in self._draining:
            # Whoever waits for the drain would wait until its deadline, for a pause that will not come.
            future.set_exception(OutOfOrder("resumed before the last running request had ended"))
        self._draining.clear()

    def _observe(self) -> None:
        found, metrics, settings = self._queue, self.metrics, self._backend.settings
        metrics.running, metrics.waiting = len(found.running), len(found.waiting)
        metrics.preemptions = found.preemptions
        metrics.prefix_queries, metrics.prefix_hits = found.prefix_queries, found.prefix_hits
        used = sum(one.length for one in found.running)
        metrics.kv_usage = used / (settings.max_num_seqs * settings.max_model_len)

    def _fail_everything(self, message: str) -> None:
        requests = list(self._requests.values())
        for request in requests:
            request.error = message
        self._hand_out([], requests)
