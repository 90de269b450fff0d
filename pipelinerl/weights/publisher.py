"""Moving one version of the weights into every engine: the update protocol, seen from the trainer.

For each participating engine: pause, start, update, finish, resume; all engines at the same time. An engine
that fails between start and finish may hold half a model: it is broken, is never resumed and takes part again
only as a new process. On any error nothing may be announced.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pipelinerl.inference.answers import read_prompt_logprobs
from pipelinerl.weights.base import NamedTensor, StagedUpdate, Transport
from pipelinerl.weights.http import CallFailed, call, get_json

KvPolicy = Literal["keep", "recompute"]
TRIES = 3
"""Attempts at the idempotent steps, pause and resume, after an HTTP error."""
BYTES_PER_SECOND = 1e9
"""Slowest transport that still counts as working."""
READY_INTERVAL_S = 0.1


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


class WeightUpdateError(RuntimeError):
    """An update failed at `step` of `engine`; `body` is what the engine said, `broken` whom it cost."""

    def __init__(self, engine: str, step: str, body: str, broken: Iterable[str] = ()) -> None:
        self.engine, self.step, self.body, self.broken = engine, step, body, sorted(broken)
        lost = f"; broken: {', '.join(self.broken)}" if self.broken else ""
        super().__init__(f"weight update failed at {step} of {engine}: {body}{lost}")


@dataclass(slots=True)
class UpdateReport:
    """What one update took."""

    version: int
    bytes: int
    seconds: dict[str, float] = field(default_factory=dict)
    """Longest time of each step over the engines; `stage` and `total` are the publisher's own."""
    paused_s: dict[str, float] = field(default_factory=dict)
    """Per engine, from sending the pause to the answer of resume."""
    excluded: dict[str, str] = field(default_factory=dict)
    """Engines that did not take part, with the reason."""


class Publisher:
    """Publishes versions to engines; one update at a time, from one thread."""

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
        self._transport = transport
        self._clear_cache = "true" if kv == "recompute" else "false"
        self._deadlines = deadlines or PublishDeadlines()
        self._initialised: set[str] = set()
        self._layout: dict[str, tuple[tuple[int, ...], str]] | None = None
        self._pool = ThreadPoolExecutor(len(self.engine_urls) + 1, thread_name_prefix="publish")

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
        """
        if self.version is not None and version < self.version:
            raise ValueError(f"version {version} is older than {self.version}; versions only grow")
        started = time.perf_counter()
        report = UpdateReport(version, 0)
        participants = self._participants(report)
        staged = self._transport.stage(version, named_tensors)
        self._check_layout(staged)
        report.bytes = staged.bytes
        report.seconds["stage"] = time.perf_counter() - started
        exchanges = [_Exchange(url, self._deadlines, self._clear_cache) for url in participants]
        self._pause(exchanges, report)
        self._transfer([one for one in exchanges if one.paused_at], staged, version, report)
        report.seconds["total"] = time.perf_counter() - started
        self.version = version
        return report

    def stale_engines(self) -> list[str]:
        """Healthy engines that do not have the last published version, such as one started again."""
        if self.version is None:
            return []
        candidates = [url for url in self.engine_urls if not self._health_problem(url)]
        return [
            url
            for url in candidates
            if self._label(url) not in (None, str(self.version))
            and (url not in self.broken or self._is_new(url))
        ]

    def prompt_logprobs(self, token_ids: np.ndarray) -> dict[str, np.ndarray]:
        """For each participating engine, float32 [P - 1]: log-probabilities of prompt tokens 1 … P - 1."""
        prompt = np.asarray(token_ids, dtype=np.int32)
        sampling = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "detokenize": False}
        body = {"token_ids": prompt.tolist(), "sampling_params": sampling, "stream": False}
        urls = [url for url in self.engine_urls if url in self._initialised]
        futures = [
            self._pool.submit(call, "POST", url, "/inference/v1/generate", self._deadlines.parity_s, body)
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
        self._initialised.discard(url)

    def close(self) -> None:
        """Give up threads and files."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._transport.close()

    def _participants(self, report: UpdateReport) -> list[str]:
        """Step 0: engines that answer; one that is new since the last update is initialised first."""
        found, new = [], []
        for url in self.engine_urls:
            problem = self._health_problem(url)
            if not problem and url in self.broken and not self._is_new(url):
                problem = "broken by a failed update and not restarted yet"
            if problem:
                report.excluded[url] = problem
                self._initialised.discard(url)
                continue
            found.append(url)
            restarted = self.version is not None and self._label(url) == "default"
            if restarted or url not in self._initialised:
                new.append(url)
        if not found:
            reasons = "; ".join(f"{url}: {reason}" for url, reason in report.excluded.items())
            raise WeightUpdateError(self.engine_urls[0], "health", f"no engine can take part ({reasons})")
        if new:
            self._initialise(new)
        return found

    def _initialise(self, urls: list[str]) -> None:
        """Rendezvous of the engines and the publisher, all at the same time."""
        health, deadline = self._deadlines.health_s, self._deadlines.init_s
        try:
            sizes = [get_json(url, "/get_world_size", health)["world_size"] for url in urls]
        except CallFailed as error:
            raise WeightUpdateError(urls[0], "get_world_size", str(error)) from error
        joined = self._pool.submit(self._transport.join, deadline)
        futures = [
            self._pool.submit(
                call, "POST", url, "/init_weight_transfer_engine", deadline, {"init_info": info}
            )
            for url, info in zip(urls, self._transport.init_info(sizes), strict=True)
        ]
        for url, future in zip(urls, futures, strict=True):
            try:
                future.result(deadline)
            except (CallFailed, TimeoutError) as error:
                raise WeightUpdateError(url, "init_weight_transfer_engine", str(error)) from error
        joined.result(deadline)
        self._initialised.update(urls)
        self.broken.difference_update(urls)

    def _pause(self, exchanges: list["_Exchange"], report: UpdateReport) -> None:
        """Step 1. A lost engine is excluded; one that refuses ends the update, the others are resumed."""
        self._each(exchanges, _Exchange.pause)
        refused = next((one for one in exchanges if one.error and one.error.status is not None), None)
        paused = [one for one in exchanges if one.error is None]
        for one in exchanges:
            if one.error is not None:
                report.excluded[one.url] = str(one.error)
        if refused is not None or not paused:
            self._each(paused, _Exchange.resume)
            culprit = refused or exchanges[0]
            raise WeightUpdateError(culprit.url, culprit.step, str(culprit.error))

    def _transfer(
        self, exchanges: list["_Exchange"], staged: StagedUpdate, version: int, report: UpdateReport
    ) -> None:
        """Steps 2 to 5: each engine on its own thread, the transport's send on another."""
        deadline = self._deadlines.update_s + staged.bytes / BYTES_PER_SECOND
        sent = self._pool.submit(self._transport.send, staged, deadline)
        self._each(exchanges, lambda one: one.transfer(staged.info, version, deadline))
        for one in exchanges:
            for step, seconds in one.seconds.items():
                report.seconds[step] = max(seconds, report.seconds.get(step, 0.0))
            report.paused_s[one.url] = one.paused_s
        broken = [one.url for one in exchanges if not one.finished]
        for url in broken:
            self.mark_broken(url)
        for one in exchanges:
            if one.error is not None:
                raise WeightUpdateError(one.url, one.step, str(one.error), broken)
        sent.result(deadline)

    def _each(self, exchanges: list["_Exchange"], step: Callable[["_Exchange"], None]) -> None:
        """Run a step for all engines at the same time; every call inside has its own deadline."""
        for future in [self._pool.submit(step, one) for one in exchanges]:
            future.result()

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

    def _health_problem(self, url: str) -> str:
        try:
            call("GET", url, "/health", self._deadlines.health_s)
        except CallFailed as error:
            return str(error) or "not healthy"
        return ""

    def _is_new(self, url: str) -> bool:
        """A broken engine stays paused for ever, so one that is not paused is another process."""
        try:
            return not get_json(url, "/is_paused", self._deadlines.health_s)["is_paused"]
        except CallFailed:
            return False

    def _label(self, url: str) -> str | None:
        """Version label in force; None from an engine that does not say."""
        try:
            return get_json(url, "/weight_info", self._deadlines.health_s)["weight_version"]
        except CallFailed:
            return None


class _Exchange:
    """The protocol with one engine: where it stands, how long each step took, what went wrong."""

    def __init__(self, url: str, deadlines: PublishDeadlines, clear_cache: str) -> None:
        self.url = url
        self.step = ""
        self.seconds: dict[str, float] = {}
        self.error: CallFailed | None = None
        self.paused_at = 0.0
        self.paused_s = 0.0
        self.finished = False
        self._deadlines = deadlines
        self._clear_cache = clear_cache

    def pause(self) -> None:
        self.paused_at = time.perf_counter()
        path = f"/pause?mode=keep&clear_cache={self._clear_cache}"
        if not self._do("pause", path, self._deadlines.pause_s, tries=TRIES):
            self.paused_at = 0.0

    def transfer(self, info: dict[str, Any], version: int, update_deadline_s: float) -> None:
        limits = self._deadlines
        if not self._do("start", "/start_weight_update", limits.start_s):
            return
        if not self._do("update", "/update_weights", update_deadline_s, {"update_info": info}):
            return
        label = {"weight_version": str(version)}
        if not self._do("finish", "/finish_weight_update", limits.finish_s, label):
            return
        self.finished = True
        self.resume()

    def resume(self) -> None:
        self._do("resume", "/resume", self._deadlines.resume_s, tries=TRIES)
        self.paused_s = time.perf_counter() - self.paused_at

    def _do(self, step: str, path: str, deadline_s: float, body: Any = None, *, tries: int = 1) -> bool:
        """One call; True on 200. An HTTP error is tried again `tries` times, a lost connection is not."""
        self.step, started = step, time.perf_counter()
        for attempt in range(1, tries + 1):
            try:
                call("POST", self.url, path, deadline_s, body)
                self.seconds[step] = time.perf_counter() - started
                return True
            except CallFailed as error:
                if error.status is None or attempt == tries:
                    self.error = error
                    return False
        return False
