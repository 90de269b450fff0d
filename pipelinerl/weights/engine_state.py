"""What an engine says of itself between updates, and what the publisher remembers of it.

Every question has the short deadline of a health check.
"""

import json
import time
from dataclasses import dataclass
from typing import Any

from pipelinerl.base.http import CallFailed, call, get_or_none
from pipelinerl.base.threads import in_thread
from pipelinerl.engines.engine_metrics import GENERATED, STARTED, parse_prometheus
from pipelinerl.engines.vllm.options import PauseRoutes, pause_routes
from pipelinerl.weights.transports.base import Member


@dataclass(slots=True)
class Counters:
    """Some of an engine's metrics; None where it does not say."""

    at: float  # when they were read, on the monotonic clock
    started: float | None = None  # when the process started, in seconds since 1970
    generated: float | None = None  # tokens sampled since then

    def is_another_process(self, earlier: "Counters") -> bool:
        """Whether a process started in between: it says so, or counts from the beginning."""
        # An engine with several HTTP processes says when it started only through our plug-in.
        if self.started is not None and earlier.started is not None:
            return self.started != earlier.started
        return self.generated is not None and self.generated < (earlier.generated or 0.0)

    def rate_since(self, earlier: "Counters | None") -> float:
        """Tokens per second between two readings of one process; 0 when that is not known."""
        if earlier is None or earlier.generated is None or self.generated is None or self.at <= earlier.at:
            return 0.0
        return max(0.0, self.generated - earlier.generated) / (self.at - earlier.at)


class EngineState:
    """One engine: what it said when it was last looked at, and what was agreed on with it."""

    def __init__(self, url: str, deadline_s: float) -> None:
        self.url = url
        self.problem = ""  # why it cannot take part in an update; empty if it can
        self.weight_version: str | None = None  # `default` before the first; None from vLLM 0.26
        self.now = Counters(0.0)
        self.last: Counters | None = None  # before the last update, if it took part
        self.joined: Counters | None = None  # at its rendezvous; None: it needs one before the next update
        self.broken = False  # it may hold half a model
        self.served: int | None = None  # the version that this process confirmed last
        self.vllm: str | None = None  # version of vLLM that it said at its rendezvous; None: another engine
        self.routes: PauseRoutes = pause_routes(None, clear_cache=False)
        self.offers: frozenset[str] = frozenset()  # PREPARE_ROUTE and CHECK_ROUTE, where it has them
        self._deadline_s = deadline_s

    def look(self) -> None:
        """Ask for health, weight version and counters."""
        # At the same time: a busy engine takes a while for each answer.
        version, now = in_thread(self._said, "/weight_info", "weight_version"), in_thread(self.counters)
        self.problem = self.health_problem()
        self.weight_version, self.now = version.result(), now.result()
        # A broken engine is never resumed, so one that is not paused is another process.
        if not self.problem and self.broken and self.is_paused():
            self.problem = "broken by a failed update and not restarted yet"

    def has_restarted(self, published: int | None) -> bool:
        """Whether the process is another one than that of the rendezvous; True without a rendezvous."""
        if self.joined is None or (published is not None and self.weight_version == "default"):
            return True
        return self.now.is_another_process(self.last or self.joined)

    def is_stale(self, published: int) -> bool:
        """Look at it: whether it could serve, and not with the version that was published last."""
        self.look()
        if self.problem:
            return False
        if self.weight_version is not None:
            return self.weight_version != str(published)
        # vLLM 0.26 does not say: it has what it confirmed last, as long as it is the same process.
        return self.served != published or self.has_restarted(published)

    def health_problem(self) -> str:
        """Why the engine is not healthy; empty if it is."""
        try:
            call("GET", self.url, "/health", self._deadline_s)
        except CallFailed as error:
            return str(error) or "not healthy"
        return ""

    def is_paused(self) -> bool:
        """Whether sampling is stopped; an engine that does not answer counts as paused."""
        return bool(self._said("/is_paused", "is_paused", True))

    def counters(self) -> Counters:
        """The metrics that are looked at here."""
        # Nothing from a busy engine that does not answer in time: that is no sign of another process.
        text = get_or_none(self.url + "/metrics", self._deadline_s) or b""
        try:
            values = parse_prometheus(text.decode(errors="replace"))
        except ValueError:
            values = {}
        return Counters(time.monotonic(), values.get(STARTED), values.get(GENERATED))

    def member(self) -> Member:
        """What a transport has to know. CallFailed if the engine does not say it."""
        ranks = json.loads(call("GET", self.url, "/get_world_size", self._deadline_s))["world_size"]
        try:
            version = json.loads(call("GET", self.url, "/version", self._deadline_s))["version"]
        except CallFailed as error:
            # Only the lack of the route says that it is no vLLM; a busy one may be late with its answer.
            if error.status != 404:
                raise
            version = None
        return Member(self.url, int(ranks), version)

    def _said(self, path: str, key: str, otherwise: Any = None) -> Any:
        """A field of an answer; `otherwise` from an engine that does not answer or has no such route."""
        answer = get_or_none(self.url + path, self._deadline_s)
        return otherwise if answer is None else json.loads(answer).get(key, otherwise)


def offered(answer: bytes) -> frozenset[str]:
    """The `optional_routes` in an answer to /init_weight_transfer_engine."""
    try:
        return frozenset(json.loads(answer)["optional_routes"])
    except (ValueError, TypeError, KeyError):  # vLLM's has no such field
        return frozenset()
