"""One version on its way into the engines that take part in an update, all at the same time.

Two orders of the same steps. With a transport that is `ahead`, engines receive while they generate: start,
update, and when everything has arrived pause, finish, resume. Otherwise they are paused first: pause, start,
update, finish, resume; engines that offer it read the version before that, with a route of their own.
"""

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial

from pipelinerl.base.http import encode
from pipelinerl.weights.send.base import StagedUpdate, Transport
from pipelinerl.weights.send.exchange import Exchange, PublishDeadlines, in_thread

BYTES_PER_SECOND = 1e9
"""Slowest transport that still counts as working."""


class WeightUpdateError(RuntimeError):
    """An update failed at `step` of `engine`; `body` is what the engine said, `broken` whom it cost."""

    def __init__(self, engine: str, step: str, body: str, broken: Collection[str] = ()) -> None:
        self.engine, self.step, self.body, self.broken = engine, step, body, sorted(broken)
        lost = f"; broken: {', '.join(self.broken)}" if self.broken else ""
        super().__init__(f"weight update failed at {step} of {engine}: {body}{lost}")


class SenderStuck(RuntimeError):
    """A transfer could not be ended even by aborting it; only a new trainer process helps."""


class Transfer:
    """The update of one version; a new object for each.

    An engine that was started and has not finished afterwards is in `broken`: it may hold half a model.
    """

    def __init__(
        self,
        transport: Transport,
        exchanges: Sequence[Exchange],
        staged: StagedUpdate,
        version: int,
        deadlines: PublishDeadlines,
    ) -> None:
        self.seconds: dict[str, float] = {}
        """Longest time of each step over the engines, and of `send`."""
        self.paused_s: dict[str, float] = {}
        self.excluded: dict[str, str] = {}
        """Engines that were lost before they were started, with the reason."""
        self.broken: list[str] = []
        self.spoiled = False
        """The group of a collective transport does not exist any more."""
        self._transport, self._staged = transport, staged
        self._exchanges, self._version = list(exchanges), version
        self._deadlines = deadlines
        self._body = encode({"update_info": staged.info})
        self._deadline_s = deadlines.update_s + staged.bytes / BYTES_PER_SECOND

    def run(self, preparing: Collection[str]) -> None:
        """All steps; `preparing`: URLs of engines with a route of their own for reading ahead.

        Raises WeightUpdateError, or SenderStuck when the sender cannot be freed.
        """
        everybody = self._exchanges
        try:
            if self._transport.ahead:
                self._receive_and_place()
            else:
                self._prepare(preparing)
                self._each(self._exchanges, Exchange.pause)
                self._leave_out_the_lost()
                self._update_while_paused()
        finally:
            for one in everybody:
                one.close()

    def _receive_and_place(self) -> None:
        """Transfer while everybody generates; the pause is only for putting the version into place."""
        arrived = self._transport.arrived
        self._each(self._exchanges, partial(Exchange.start, paused=False))
        lost = [one for one in self._exchanges if one.error and one.error.status is None]
        if len(lost) < len(self._exchanges) and not self._transport.collective:
            self.excluded |= {one.url: str(one.error) for one in lost}
            self._exchanges = [one for one in self._exchanges if one not in lost]
        failure: BaseException | None = None
        if not self._one_ends_all():
            receive = [
                partial(one.receive, self._body, self._deadline_s, partial(arrived, self._staged, one.url))
                for one in self._exchanges
            ]
            failure = self._send_while(receive)
        without = failure is not None or self._one_ends_all()

        def place_or_stop(one: Exchange) -> None:
            if without or one.error is not None:  # it has its old weights, but cannot be started again
                one.stop()
            else:
                one.place(self._version)

        self._each(self._exchanges, place_or_stop)
        self._account(failure)

    def _update_while_paused(self) -> None:
        """Start, update, finish and resume of paused engines, with the transport's send beside it."""
        self._each(self._exchanges, Exchange.start)
        failure: BaseException | None = None
        if not self._one_ends_all():
            complete = [
                partial(one.complete, self._body, self._version, self._deadline_s) for one in self._exchanges
            ]
            failure = self._send_while(complete)
        self._account(failure)

    def _one_ends_all(self) -> bool:
        """Whether an engine has failed without which the others cannot be updated."""
        return self._transport.collective and any(one.error for one in self._exchanges)

    def _prepare(self, preparing: Collection[str]) -> None:
        """Before step 1, engines that offer it read the version."""
        offered = [one for one in self._exchanges if one.url in preparing]
        if offered:
            self._each(offered, lambda one: one.prepare(self._body, self._deadline_s))
            self._leave_out_the_lost()

    def _leave_out_the_lost(self) -> None:
        """A lost engine is excluded; one that refuses ends the update, the others are resumed.

        A transport that needs everybody cannot do without the lost one either.
        """
        lost = [one for one in self._exchanges if one.error is not None]
        refused = next((one for one in lost if one.error and one.error.status is not None), None)
        left = [one for one in self._exchanges if one.error is None]
        if refused is None and lost and self._transport.collective:
            refused = lost[0]
        for one in lost:
            self.excluded[one.url] = str(one.error)
        if refused is not None or not left:
            self._each([one for one in left if one.paused_at], Exchange.resume)
            culprit = refused or self._exchanges[0]
            raise WeightUpdateError(culprit.url, culprit.step, str(culprit.error))
        self._exchanges = left

    def _account(self, failure: BaseException | None) -> None:
        """Times, whom it cost, and the error if there was one."""
        for one in self._exchanges:
            for step, seconds in one.seconds.items():
                self.seconds[step] = max(seconds, self.seconds.get(step, 0.0))
            self.paused_s[one.url] = one.paused_s
        self.broken = [one.url for one in self._exchanges if not one.finished]
        self.spoiled = failure is not None and self._transport.collective
        for one in self._exchanges:
            if one.error is not None and not one.was_cut:
                raise WeightUpdateError(one.url, one.step, str(one.error), self.broken) from failure
        if failure is not None:
            raise WeightUpdateError("the trainer", "send", str(failure), self.broken) from failure

    def _timed_send(self) -> None:
        started = time.perf_counter()
        self._transport.send(self._staged, self._deadline_s)
        self.seconds["send"] = time.perf_counter() - started

    def _send_while(self, work: Sequence[Callable[[], None]]) -> BaseException | None:
        """Wait for sender and engines; the failure of one ends the others where all depend on all.

        Returns what the sender died of, if it did. Raises SenderStuck when it cannot be freed.
        """
        sent = in_thread(self._timed_send)
        pending: set[Future[None]] = {sent, *(in_thread(one) for one in work)}
        given_up = False
        while pending - {sent} or (self._transport.ahead and pending and not given_up):
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            failed = sent in done and sent.exception() is not None
            failed = failed or any(one.error is not None and not one.finished for one in self._exchanges)
            if failed and self._transport.collective and not given_up:
                given_up = True
                self._transport.abort()
                for one in self._exchanges:
                    if one.step == "update" and one.error is None:
                        one.cut()
        limit = self._deadlines.abort_s
        if not wait([sent], limit).done:
            self._transport.abort()
            if not wait([sent], limit).done:
                raise SenderStuck(
                    f"the sender of version weights does not end {limit:g} s after its transfer was aborted; "
                    "the trainer has to be started again"
                )
        return sent.exception()

    @staticmethod
    def _each(exchanges: Sequence[Exchange], step: Callable[[Exchange], None]) -> None:
        """Run a step for all engines at the same time; every call inside has its own deadline."""
        if len(exchanges) == 1:  # no need to wait until a thread is scheduled
            step(exchanges[0])
            return
        for future in [in_thread(step, one) for one in exchanges]:
            future.result()
