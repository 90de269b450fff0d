"""One version into all participating engines at the same time, while the transport sends it.

Called by `publisher` for each version. `Transport.ahead` decides the order of the steps,
`Transport.collective` what the failure of one engine costs the others.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from pipelinerl.base.http import encode
from pipelinerl.base.threads import in_thread
from pipelinerl.engines.wire import PermanentUpdateError
from pipelinerl.weights.engine_state import EngineState
from pipelinerl.weights.engine_update import EngineUpdate, PublishDeadlines
from pipelinerl.weights.refusals import Failure
from pipelinerl.weights.transports.base import StagedUpdate, Transport

# The slowest transport that still counts as working.
BYTES_PER_SECOND = 1e9
OTHERS_SAY_S = 1.0
TRAINER = "the trainer"
"""Stands where an engine's URL would, for what fails on this side."""


class WeightUpdateError(RuntimeError):
    """An update failed; the first of `failures` is what ended it, `broken` are the engines that it cost.

    One line: each engine's problem once, engines with the same one together.
    """

    def __init__(self, failures: Sequence[Failure], broken: Collection[str] = ()) -> None:
        """With a permanent failure among them only those are told: they end the run."""
        # The cause first: that an engine was lost may be why others refuse.
        self.failures = [one for one in failures if one.permanent] or sorted(
            failures, key=lambda f: f.refused
        )
        first = self.failures[0]
        self.engine, self.step, self.body = first.engine, first.step, first.words
        self.permanent = first.permanent
        """Whether another process would refuse it as well."""
        self.broken = sorted(broken)
        said: dict[tuple[str, str], list[str]] = {}
        for one in self.failures:
            said.setdefault((one.step, one.words), []).append(one.engine)
        problems = (f"{step} of {' and '.join(who)}: {words}" for (step, words), who in said.items())
        lost = f"; broken: {', '.join(self.broken)}" if self.broken and not self.permanent else ""
        super().__init__(f"weight update failed at {'; at '.join(problems)}{lost}")


class SenderStuck(RuntimeError):
    """A transfer could not be ended even by aborting it; only a new trainer process helps."""


@dataclass(slots=True)
class UpdateReport:
    """What one update took, and whom it cost if it failed."""

    version: int
    bytes: int
    seconds: dict[str, float] = field(default_factory=dict)
    """Longest time of each step over the engines; `stage`, `send` and `total` are the publisher's own."""
    paused_s: dict[str, float] = field(default_factory=dict)
    """Per engine, from sending the pause to the answer of resume."""
    excluded: dict[str, str] = field(default_factory=dict)
    """Engines that did not take part, also those that are gone for good, with the reason."""
    lost_tokens: float = 0.0
    """Tokens that all engines would have sampled meanwhile, at the rate they had since the update before."""
    joined: list[str] = field(default_factory=list)
    """Engines that were new and agreed on the transport just before."""
    broken: list[str] = field(default_factory=list)  # engines that were started and have not finished
    group_lost: bool = False  # a collective transport's group was aborted and has to be made anew


class VersionUpdate:
    """The update of one version; a new object for each."""

    def __init__(
        self,
        transport: Transport,
        engines: Iterable[EngineState],
        staged: StagedUpdate,
        report: UpdateReport,
        deadlines: PublishDeadlines,
    ) -> None:
        self._transport, self._staged, self._report = transport, staged, report
        self._engines = [EngineUpdate(one, deadlines, transport.ahead) for one in engines]
        self._body = encode({"update_info": staged.info})
        self._deadline_s = deadlines.update_s + staged.bytes / BYTES_PER_SECOND
        self._abort_s = deadlines.abort_s

    def run(self) -> None:
        """All steps. Raises WeightUpdateError, or SenderStuck when the sender cannot be freed."""
        everybody, ahead = self._engines, self._transport.ahead
        try:
            # Each step for everybody before the next: who is lost before start costs nobody a started update.
            if not ahead:
                self._each(lambda one: one.prepare(self._body, self._deadline_s))
                self._leave_out_the_lost()
                self._each(EngineUpdate.pause)
                self._leave_out_the_lost()
            self._each(EngineUpdate.start)
            if ahead and not self._transport.collective and not all(one.lost for one in self._engines):
                self._exclude([one for one in self._engines if one.lost])
            failure: BaseException | None = None
            if not self._one_ends_all():
                failure = self._send_while(self._update if ahead else self._update_and_finish)
            if ahead:
                given_up = failure is not None or self._one_ends_all()
                self._each(lambda one: one.finish(self._report.version, given_up))
            self._account(failure)
        finally:
            for one in everybody:
                one.close()

    def _update(self, one: EngineUpdate) -> None:
        one.update(self._body, self._deadline_s, lambda: self._transport.arrived(self._staged, one.url))

    def _update_and_finish(self, one: EngineUpdate) -> None:
        # An engine goes on as soon as it has everything, whatever the others still do.
        self._update(one)
        one.finish(self._report.version)

    def _one_ends_all(self) -> bool:
        """Whether an engine has failed without which the others cannot be updated."""
        return self._transport.collective and any(one.error for one in self._engines)

    def _exclude(self, lost: list[EngineUpdate]) -> None:
        self._report.excluded |= {one.url: str(one.error) for one in lost}
        self._engines = [one for one in self._engines if one not in lost]

    def _leave_out_the_lost(self) -> None:
        """Before start: exclude who failed; raise, with the others resumed, where the update cannot go on."""
        failed = [one for one in self._engines if one.error is not None]
        self._exclude(failed)
        # An engine that has refused runs on, and would serve old weights under the announced version.
        fatal = [one for one in failed if not one.lost]
        if not fatal and (self._transport.collective or not self._engines):
            fatal = failed
        if fatal:
            self._each(lambda one: one.resume() if one.paused_at else None)
            raise WeightUpdateError([one.failure for one in fatal if one.failure])

    def _account(self, failure: BaseException | None) -> None:
        """Times, whom it cost, and the error if there was one."""
        report = self._report
        for one in self._engines:
            for step, seconds in one.seconds.items():
                report.seconds[step] = max(seconds, report.seconds.get(step, 0.0))
            report.paused_s[one.url] = one.paused_s
        report.broken = [one.url for one in self._engines if not one.finished]
        report.group_lost = failure is not None and self._transport.collective
        # Engines that were cut, and a sender that was aborted, only followed.
        failures = [one.failure for one in self._engines if one.failure and not one.was_cut]
        sender = [] if failure is None else [Failure(TRAINER, "send", failure)]
        # One that had no memory to begin with is why engines waited in vain.
        if isinstance(failure, PermanentUpdateError) or not failures:
            failures = sender
        if failures:
            raise WeightUpdateError(failures, report.broken) from failure

    def _send_while(self, work: Callable[[EngineUpdate], None]) -> BaseException | None:
        """Sender and engines beside each other; returns what the sender died of, if it did."""
        sent = in_thread(self._timed_send)
        pending: set[Future[None]] = {sent, *(in_thread(work, one) for one in self._engines)}
        given_up = False
        # In a pause an engine's answer says that it has everything; ahead of it, only the sender's end does.
        while pending - {sent} or (self._transport.ahead and pending and not given_up):
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            failed = sent in done and sent.exception() is not None
            failed = failed or any(one.error is not None and not one.finished for one in self._engines)
            # Where all depend on all, the others would wait for the failed one until their deadlines.
            if failed and self._transport.collective and not given_up:
                given_up = True
                # The run ends for it, so that others may say whether theirs is the same.
                if any(one.failure is not None and one.failure.permanent for one in self._engines):
                    wait(pending - {sent}, OTHERS_SAY_S)
                self._transport.abort()
                for one in self._engines:
                    if one.step == "update" and one.error is None:
                        one.cut()
        if not wait([sent], self._abort_s).done:
            self._transport.abort()
            if not wait([sent], self._abort_s).done:
                raise SenderStuck(
                    f"the sender of version weights does not end {self._abort_s:g} s after its transfer was "
                    "aborted; the trainer has to be started again"
                )
        return sent.exception()

    def _timed_send(self) -> None:
        started = time.perf_counter()
        self._transport.send(self._staged, self._deadline_s)
        self._report.seconds["send"] = time.perf_counter() - started

    def _each(self, step: Callable[[EngineUpdate], None]) -> None:
        """Run a step for all engines at the same time; every call inside has its own deadline."""
        # A single one on this thread: a pause does not wait until another thread is scheduled.
        if len(self._engines) == 1:
            step(self._engines[0])
            return
        for future in [in_thread(step, one) for one in self._engines]:
            future.result()
