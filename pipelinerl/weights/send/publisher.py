"""Moving one version of the weights into every engine: the update protocol, seen from the trainer.

Who takes part is decided here; the steps are those of `transfer`. An engine that fails between start and
finish may hold half a model: it is broken, is never resumed and takes part again only as a new process. On
any error nothing may be announced.
"""

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pipelinerl.base.http import PREPARE_ROUTE, CallFailed, call, optional_routes
from pipelinerl.inference.answers import read_prompt_logprobs
from pipelinerl.inference.vllm import PauseRoutes, pause_routes
from pipelinerl.weights.send import looking
from pipelinerl.weights.send.base import NamedTensor, StagedUpdate, Transport, TransportError
from pipelinerl.weights.send.exchange import Exchange, PublishDeadlines, in_thread
from pipelinerl.weights.send.looking import Counters
from pipelinerl.weights.send.transfer import SenderStuck, Transfer, WeightUpdateError

__all__ = [
    "PublishDeadlines",
    "Publisher",
    "SenderStuck",
    "UpdateReport",
    "UpdateUnderWay",
    "WeightUpdateError",
]

KvPolicy = Literal["keep", "recompute"]
READY_INTERVAL_S = 0.1


class UpdateUnderWay(RuntimeError):
    """An update was asked for while another one has not ended; nothing was sent."""


@dataclass(slots=True)
class UpdateReport:
    """What one update took."""

    version: int
    bytes: int
    seconds: dict[str, float] = field(default_factory=dict)
    """Longest time of each step over the engines; `stage`, `send` and `total` are the publisher's own."""
    paused_s: dict[str, float] = field(default_factory=dict)
    """Per engine, from sending the pause to the answer of resume."""
    excluded: dict[str, str] = field(default_factory=dict)
    """Engines that did not take part, with the reason."""
    lost_tokens: float = 0.0
    """Tokens that all engines would have sampled meanwhile, at the rate they had since the update before."""
    joined: list[str] = field(default_factory=list)
    """Engines that were new and agreed on the transport just before."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What an engine said just before an update."""

    problem: str
    """Why it cannot take part; empty if it can."""
    counters: Counters
    label: str | None
    """Version label in force; None from an engine that does not say."""


class Publisher:
    """Publishes versions to engines, one update at a time."""

    def __init__(
        self,
        engine_urls: Iterable[str],
        transport: Transport,
        kv: KvPolicy = "keep",
        deadlines: PublishDeadlines | None = None,
    ) -> None:
        self.engine_urls = [url.rstrip("/") for url in engine_urls]
        if not self.engine_urls:
            raise ValueError("a publisher needs at least one engine URL")
        if kv not in ("keep", "recompute"):
            raise ValueError(f"weights.kv is {kv!r}; use keep or recompute")
        self.version: int | None = None
        """Last version that every participant confirmed."""
        self.broken: set[str] = set()
        self._updating, self._target = threading.Lock(), 0
        """Held during an update, and the version that it is to."""
        self._transport = transport
        self._clear_cache = kv == "recompute"
        self._deadlines = deadlines or PublishDeadlines()
        self._initialised: dict[str, Counters] = {}
        """Engines that agreed on the transport, as they were then."""
        self._seen: dict[str, Counters] = {}
        """Participants as they were before the last update."""
        self._routes: dict[str, PauseRoutes] = {}
        self._optional: dict[str, frozenset[str]] = {}
        """What each engine named, when it was initialised, beyond the routes of the protocol."""
        self._group: frozenset[str] = frozenset()
        """Engines of the last rendezvous."""
        self._layout: dict[str, tuple[tuple[int, ...], str]] | None = None

    def wait_ready(self, deadline_s: float) -> None:
        """Until every engine is healthy, then agree on the transport with all of them."""
        end = time.monotonic() + deadline_s
        missing = list(self.engine_urls)
        while missing := [url for url in missing if self._health_problem(url)]:
            if time.monotonic() > end:
                problems = "; ".join(f"{url}: {self._health_problem(url)}" for url in missing)
                raise WeightUpdateError(
                    missing[0], "wait for engines", f"{deadline_s:g} s passed ({problems})"
                )
            time.sleep(READY_INTERVAL_S)
        self._initialise(self.engine_urls)

    def publish(self, version: int, named_tensors: Iterable[NamedTensor]) -> UpdateReport:
        """Put `version` into every healthy engine; after a WeightUpdateError nothing may be announced.

        `named_tensors`: the distinct parameters under their Hugging Face names, without ties and value heads.
        Raises UpdateUnderWay, with nothing sent, while another thread's update has not ended.
        """
        if not self._updating.acquire(blocking=False):
            raise UpdateUnderWay(f"version {version}: the update to version {self._target} has not ended")
        try:
            self._target = version
            return self._publish(version, named_tensors)
        finally:
            self._updating.release()

    def _publish(self, version: int, named_tensors: Iterable[NamedTensor]) -> UpdateReport:
        """The update itself, under the lock."""
        if self.version is not None and version < self.version:
            raise ValueError(f"version {version} is older than {self.version}; versions only grow")
        started = time.perf_counter()
        report = UpdateReport(version, 0)
        earlier, looks = self._seen, {url: in_thread(self._look, url) for url in self.engine_urls}
        staged = self._transport.stage(version, named_tensors)  # while the engines answer
        participants = self._participants(looks, report)
        self._check_layout(staged)
        report.bytes = staged.bytes
        report.seconds["stage"] = time.perf_counter() - started
        exchanges = [Exchange(url, self._deadlines, self._routes[url]) for url in participants]
        transfer = Transfer(self._transport, exchanges, staged, version, self._deadlines)
        try:
            transfer.run({url for url in participants if PREPARE_ROUTE in self._optional[url]})
        finally:
            report.seconds |= transfer.seconds
            report.paused_s |= transfer.paused_s
            report.excluded |= transfer.excluded
            for url in transfer.broken:
                self.mark_broken(url)
            if transfer.spoiled:
                self._initialised.clear()
        report.seconds["total"] = time.perf_counter() - started
        rates = {url: self._seen[url].rate_since(earlier.get(url)) for url in report.paused_s}
        report.lost_tokens = sum(rates[url] * seconds for url, seconds in report.paused_s.items())
        self.version = version
        return report

    def stale_engines(self) -> list[str]:
        """Healthy engines that do not have the last published version, such as one started again."""
        if self.version is None:
            return []
        return [url for url in self.engine_urls if not self._health_problem(url) and self._is_stale(url)]

    def prompt_logprobs(self, token_ids: np.ndarray) -> dict[str, np.ndarray]:
        """For each participating engine, float32 [P - 1]: log-probabilities of prompt tokens 1 … P - 1."""
        prompt = np.asarray(token_ids, dtype=np.int32)
        sampling = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "detokenize": False}
        body = {"token_ids": prompt.tolist(), "sampling_params": sampling, "stream": False}
        urls = [url for url in self.engine_urls if url in self._initialised]
        futures = [
            in_thread(call, "POST", url, "/inference/v1/generate", self._deadlines.parity_s, body)
            for url in urls
        ]
        scores = {}
        for url, future in zip(urls, futures, strict=True):
            try:
                scores[url] = read_prompt_logprobs(future.result(), prompt)
            except (CallFailed, ValueError) as error:
                raise WeightUpdateError(url, "parity", str(error)) from error
        return scores

    def mark_broken(self, url: str) -> None:
        """Never talk to this process again; a new one at the same URL is admitted."""
        self.broken.add(url)
        self._initialised.pop(url, None)

    def close(self) -> None:
        """Give up files and connections."""
        self._transport.close()

    def _participants(self, looks: Mapping[str, Future[_Look]], report: UpdateReport) -> list[str]:
        """Step 0: engines that answer; one that is new since the last update is initialised first."""
        found, new, seen = [], [], dict[str, Counters]()
        for url, future in looks.items():
            look = future.result()
            problem = look.problem
            if not problem and url in self.broken and not self._is_new(url):
                problem = "broken by a failed update and not restarted yet"
            if problem:
                report.excluded[url] = problem
                self._initialised.pop(url, None)
                continue
            found.append(url)
            seen[url] = look.counters
            if url not in self._initialised or self._restarted(url, look.counters, look.label):
                new.append(url)
        if not found:
            reasons = "; ".join(f"{url}: {reason}" for url, reason in report.excluded.items())
            raise WeightUpdateError(self.engine_urls[0], "health", f"no engine can take part ({reasons})")
        if self._transport.collective and (new or set(found) != self._group):
            new = found
        if new:
            self._initialise(new)
        report.joined, self._seen = new, seen
        return found

    def _initialise(self, urls: list[str]) -> None:
        """Rendezvous of the engines and the publisher, all at the same time."""
        deadline = self._deadlines.init_s
        try:
            members = [looking.member(url, self._deadlines.health_s) for url in urls]
            infos = self._transport.init_info(members)
        except (CallFailed, TransportError) as error:
            raise WeightUpdateError(urls[0], "init_weight_transfer_engine", str(error)) from error
        joined = in_thread(self._transport.join, deadline)
        path = "/init_weight_transfer_engine"
        futures = {
            in_thread(call, "POST", url, path, deadline, {"init_info": info}): url
            for url, info in zip(urls, infos, strict=True)
        }
        everybody: set[Future[Any]] = {joined, *futures}
        done, pending = wait(everybody, deadline, return_when=FIRST_EXCEPTION)
        failed = next((one for one in done if one.exception() is not None), None)
        if failed is not None or pending:
            # Whoever is still in the rendezvous waits for one that does not come.
            self._transport.abort()
            stuck = [url for future, url in futures.items() if future in pending]
            for url in stuck if self._transport.collective else ():
                self.mark_broken(url)
            late = stuck[0] if failed is None and stuck else "the trainer"
            url = next((url for future, url in futures.items() if future is failed), late)
            reason = f"no answer within {deadline:g} s" if failed is None else str(failed.exception())
            raise WeightUpdateError(url, "init_weight_transfer_engine", reason, stuck)
        self._group = frozenset(urls)
        self._routes |= {one.url: pause_routes(one.version, self._clear_cache) for one in members}
        self._optional |= {url: optional_routes(future.result()) for future, url in futures.items()}
        for url in urls:
            self._initialised[url] = looking.counters(url, self._deadlines.health_s)
        self.broken.difference_update(urls)

    def _check_layout(self, staged: StagedUpdate) -> None:
        if self._layout is None:
            self._layout = staged.layout
        elif staged.layout != self._layout:
            names = sorted(
                name
                for name in staged.layout.keys() | self._layout.keys()
                if staged.layout.get(name) != self._layout.get(name)
            )
            raise ValueError(
                f"names, shapes or dtypes changed since the first update: {', '.join(names[:5])}"
            )

    def _look(self, url: str) -> _Look:
        """Asks everything at the same time: a busy engine takes a while for each answer."""
        counters = in_thread(looking.counters, url, self._deadlines.health_s)
        label = in_thread(self._label, url)
        return _Look(self._health_problem(url), counters.result(), label.result())

    def _health_problem(self, url: str) -> str:
        return looking.health_problem(url, self._deadlines.health_s)

    def _label(self, url: str) -> str | None:
        return looking.label(url, self._deadlines.health_s)

    def _is_new(self, url: str) -> bool:
        """A broken engine stays paused for ever, so one that is not paused is another process."""
        return not looking.is_paused(url, self._deadlines.health_s)

    def _is_stale(self, url: str) -> bool:
        if url in self.broken and not self._is_new(url):
            return False
        label = self._label(url)
        if label is not None:
            return label != str(self.version)
        if url not in self._initialised:
            return True
        return self._restarted(url, looking.counters(url, self._deadlines.health_s), label)

    def _restarted(self, url: str, now: Counters, label: str | None) -> bool:
        """Whether the process at `url` is another one than the one that was initialised."""
        if self.version is not None and label == "default":
            return True
        return now.is_another_process(self._seen.get(url, self._initialised[url]))
