"""Publishes weight versions to the engines: who takes part, one update at a time, and what an error means.

Called by the trainer's main rank (`pipelinerl/finetune/broadcast.py`), which announces a version only after
`publish` has returned: then every engine that took part serves it. An engine that failed between start and
finish may hold half a model: it is broken, and takes part again only as a new process.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipelinerl.base.http import CallFailed, call
from pipelinerl.base.threads import in_thread
from pipelinerl.engines.answers import read_prompt_logprobs
from pipelinerl.engines.requests import scoring_body
from pipelinerl.engines.vllm.options import pause_routes
from pipelinerl.engines.wire import CHECK_ROUTE, PermanentUpdateError
from pipelinerl.weights.engine_state import EngineState, offered
from pipelinerl.weights.engine_update import PublishDeadlines
from pipelinerl.weights.refusals import Failure
from pipelinerl.weights.transports.base import Held, NamedTensor, StagedUpdate, Transport, TransportError
from pipelinerl.weights.version_update import (
    TRAINER,
    UpdateReport,
    VersionUpdate,
    WeightUpdateError,
)

if TYPE_CHECKING:
    import torch

KvPolicy = Literal["keep", "recompute"]
READY_INTERVAL_S = 0.1
RENDEZVOUS = "init_weight_transfer_engine"


class UpdateUnderWay(RuntimeError):
    """An update was asked for while another one has not ended; nothing was sent."""


class Publisher:
    """Publishes versions to engines, one update at a time."""

    def __init__(
        self,
        engine_urls: Iterable[str],
        transport: Transport,
        kv: KvPolicy = "keep",
        deadlines: PublishDeadlines | None = None,
        lost: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`lost` gives the addresses of engines that will not come back, each once."""
        self._deadlines = deadlines or PublishDeadlines()
        urls = [url.rstrip("/") for url in engine_urls]
        if not urls:
            raise ValueError("a publisher needs at least one engine URL")
        self.engines = {url: EngineState(url, self._deadlines.health_s) for url in urls}
        self.version: int | None = None
        """Last version that every participant confirmed."""
        self.sent: StagedUpdate | None = None
        """What they have then."""
        self._transport = transport
        self._recompute, self._lost = kv == "recompute", lost
        self._given_up: list[str] = []
        # Held during an update, and the version that it is to.
        self._updating, self._target = threading.Lock(), 0
        # Engines of the last rendezvous.
        self._group: set[str] = set()
        self._layout: dict[str, tuple[tuple[int, ...], str]] | None = None

    def wait_ready(self, deadline_s: float) -> None:
        """Until every engine is healthy, then agree on the transport with all of them."""
        end = time.monotonic() + deadline_s
        self._transport.prepare()
        missing = dict.fromkeys(self.engines, "")
        while missing := {url: why for url in missing if (why := self.engines[url].health_problem())}:
            if time.monotonic() > end:
                problems = "; ".join(f"{url}: {why}" for url, why in missing.items())
                reason = f"{deadline_s:g} s passed ({problems})"
                raise WeightUpdateError([Failure(next(iter(missing)), "wait for engines", reason)])
            time.sleep(READY_INTERVAL_S)
            self._leave_out_lost()
            missing = {url: why for url, why in missing.items() if url in self.engines}
        self._rendezvous(list(self.engines.values()))

    def _leave_out_lost(self) -> None:
        for url in (one.rstrip("/") for one in self._lost()):
            if len(self.engines) > 1 and self.engines.pop(url, None) is not None:
                self._given_up.append(url)

    @property
    def copies(self) -> bool:
        """Whether what is held may be published while the trainer goes on."""
        return self._transport.copies

    def hold(self, named_tensors: Iterable[NamedTensor]) -> Held:
        """The tensors for `publish_held`; there may be no update under way.

        `named_tensors`: the distinct parameters under their Hugging Face names, without ties and value heads.
        """
        try:
            return self._transport.hold(named_tensors)
        except PermanentUpdateError as error:
            raise WeightUpdateError([Failure(TRAINER, "stage", error)]) from error

    def publish(self, version: int, named_tensors: Iterable[NamedTensor]) -> UpdateReport:
        """`publish_held` of the tensors themselves, which may not change until it returns."""
        return self.publish_held(version, lambda number: self._transport.stage(number, named_tensors))

    def publish_held(self, version: int, held: Held) -> UpdateReport:
        """Put `version` into every healthy engine; after a WeightUpdateError nothing may be announced.

        Raises UpdateUnderWay, with nothing sent, while another thread's update has not ended.
        """
        if not self._updating.acquire(blocking=False):
            raise UpdateUnderWay(f"version {version}: the update to version {self._target} has not ended")
        try:
            self._target = version
            return self._publish(version, held)
        finally:
            self._updating.release()

    def _publish(self, version: int, held: Held) -> UpdateReport:
        if self.version is not None and version < self.version:
            raise ValueError(f"version {version} is older than {self.version}; versions only grow")
        self._leave_out_lost()
        started = time.perf_counter()
        report = UpdateReport(version, 0)
        # Staged while the engines answer; both before anybody is paused.
        looks = [in_thread(one.look) for one in self.engines.values()]
        try:
            staged = held(version)
        except PermanentUpdateError as error:
            raise WeightUpdateError([Failure(TRAINER, "stage", error)]) from error
        for look in looks:
            look.result()
        engines = self._participants(report)
        rates = {}
        for one in engines:
            rates[one.url], one.last = one.now.rate_since(one.last), one.now
            one.routes = pause_routes(one.vllm, self._clears_cache(one))
        # Before anybody is paused: an engine would find it out in the middle of its model.
        self._check_layout(staged)
        report.bytes = staged.bytes
        report.seconds["stage"] = time.perf_counter() - started
        try:
            VersionUpdate(self._transport, engines, staged, report, self._deadlines).run()
        finally:
            for url in report.broken:
                self.mark_broken(url)
            if report.group_lost:
                for one in engines:
                    one.joined = None
        report.seconds["total"] = time.perf_counter() - started
        report.lost_tokens = sum(rates[url] * seconds for url, seconds in report.paused_s.items())
        self.version, self.sent = version, staged
        return report

    def stale_engines(self) -> list[str]:
        """Healthy engines that do not have the last published version, such as one started again."""
        version = self.version
        return [one.url for one in self.engines.values() if version is not None and one.is_stale(version)]

    def prompt_logprobs(self, token_ids: np.ndarray) -> dict[str, np.ndarray]:
        """For each participating engine, float32 [P - 1]: log-probabilities of prompt tokens 1 … P - 1."""
        urls = [one.url for one in self.engines.values() if one.joined is not None]
        return prompt_logprobs(urls, token_ids, self._deadlines.parity_s)

    def sent_tensors(self) -> Mapping[str, torch.Tensor] | None:
        """The tensors of the last version as they were sent; None where the transport keeps none."""
        return None if self.sent is None else self._transport.sent_tensors(self.sent)

    def loaded_checksums(self) -> dict[str, dict[str, str]]:
        """For each participating engine that can say it: the checksum of every parameter, by its name."""
        urls = [
            one.url for one in self.engines.values() if one.joined is not None and CHECK_ROUTE in one.offers
        ]
        answers = {url: in_thread(call, "POST", url, CHECK_ROUTE, self._deadlines.parity_s) for url in urls}
        found = {}
        for url, answer in answers.items():
            try:
                found[url] = dict(json.loads(answer.result())["checksums"])
            except (CallFailed, ValueError, TypeError, KeyError) as error:
                raise WeightUpdateError([Failure(url, "checksums", error)]) from error
        return found

    def mark_broken(self, url: str) -> None:
        """Never talk to this process again; a new one at the same URL is admitted."""
        self.engines[url].broken, self.engines[url].joined = True, None

    def close(self) -> None:
        self._transport.close()

    def _participants(self, report: UpdateReport) -> list[EngineState]:
        """Engines that can take part; one that is new since the last update has its rendezvous first."""
        report.excluded = dict.fromkeys(self._given_up, "given up by the launcher")
        for one in (one for one in self.engines.values() if one.problem):
            report.excluded[one.url] = one.problem
            one.joined = one.last = None  # when it is back it has a rendezvous of its own
        engines = [one for one in self.engines.values() if not one.problem]
        if not engines:
            reasons = "; ".join(f"{url}: {reason}" for url, reason in report.excluded.items())
            reason = f"no engine can take part ({reasons})"
            raise WeightUpdateError([Failure(next(iter(self.engines)), "health", reason)])
        new = [one for one in engines if one.has_restarted(self.version)]
        for one in new:
            one.served = None
        # Ranks of a group are fixed: it is made anew for whoever came, and without whoever has gone.
        if self._transport.collective and (new or {one.url for one in engines} != self._group):
            new = engines
        if new:
            self._rendezvous(new)
        report.joined = [one.url for one in new]
        return engines

    def _clears_cache(self, one: EngineState) -> bool:
        """Whether the update must leave no keys and values of earlier weights in the engine.

        Clients tell blocks of a prefix cache apart by the announced version (`requests.cache_salt`). That is
        exact in an engine that serves what is announced. One that missed a version, was started again or
        served an earlier run may hold blocks of other weights under the same number.
        """
        return self._recompute or one.served is None or one.served != self.version

    def _rendezvous(self, engines: list[EngineState]) -> None:
        """Engines and publisher agree on the transport, all at the same time: each waits for all others."""
        deadline = self._deadlines.init_s
        try:
            members = [one.member() for one in engines]
            infos = self._transport.init_info(members)
        except (CallFailed, TransportError, PermanentUpdateError) as error:
            raise WeightUpdateError([Failure(engines[0].url, RENDEZVOUS, error)]) from error
        joined = in_thread(self._transport.join, deadline)
        waits: dict[str, Future[Any]] = {
            one.url: in_thread(call, "POST", one.url, f"/{RENDEZVOUS}", deadline, {"init_info": info})
            for one, info in zip(engines, infos, strict=True)
        }
        waits[TRAINER] = joined
        wait(waits.values(), deadline, return_when=FIRST_EXCEPTION)
        late = [who for who, one in waits.items() if not one.done()]
        failed = [who for who, one in waits.items() if one.done() and one.exception() is not None]
        if failed or late:
            # Whoever is still in the rendezvous waits for one that does not come.
            self._transport.abort()
            stuck = [who for who in late if who in self.engines]
            for url in stuck if self._transport.collective else ():
                self.mark_broken(url)
            causes = {who: waits[who].exception() or "" for who in failed}
            causes = causes or {late[0]: f"no answer within {deadline:g} s"}
            raise WeightUpdateError([Failure(who, RENDEZVOUS, why) for who, why in causes.items()], stuck)
        self._group = {one.url for one in engines}
        for one, member in zip(engines, members, strict=True):
            one.vllm = member.version
            one.offers = offered(waits[one.url].result())
            one.joined, one.broken = one.counters(), False

    def _check_layout(self, staged: StagedUpdate) -> None:
        """ValueError unless names, shapes and dtypes are those of the first update."""
        if self._layout is None:
            self._layout = staged.layout
        if changed := {name for name, _ in self._layout.items() ^ staged.layout.items()}:
            names = ", ".join(sorted(changed)[:5])
            raise ValueError(f"names, shapes or dtypes changed since the first update: {names}")


def prompt_logprobs(urls: Iterable[str], token_ids: np.ndarray, deadline_s: float) -> dict[str, np.ndarray]:
    """For each engine, float32 [P - 1]: log-probabilities of prompt tokens 1 … P - 1.

    Raises WeightUpdateError for one that does not answer.
    """
    prompt = np.asarray(token_ids, dtype=np.int32)
    path, body = "/inference/v1/generate", scoring_body(prompt)
    answers = {url: in_thread(call, "POST", url, path, deadline_s, body) for url in urls}
    scores = {}
    for url, answer in answers.items():
        try:
            scores[url] = read_prompt_logprobs(answer.result(), prompt)
        except (CallFailed, ValueError) as error:
            raise WeightUpdateError([Failure(url, "parity", error)]) from error
    return scores
