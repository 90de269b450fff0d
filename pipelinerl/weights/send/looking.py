"""What an engine says about itself between updates; every question has a short deadline."""

import time
from dataclasses import dataclass

from pipelinerl.base.http import CallFailed, call, get_json
from pipelinerl.inference.engine_metrics import STARTED, parse_prometheus
from pipelinerl.weights.send.base import Member

GENERATED = "vllm:generation_tokens_total"


@dataclass(slots=True)
class Counters:
    """Some of an engine's metrics; None where it does not say."""

    at: float
    """When they were read, on the monotonic clock."""
    started: float | None = None
    """When the process started, in seconds since 1970."""
    generated: float | None = None
    """Tokens sampled since then."""

    def is_another_process(self, earlier: "Counters") -> bool:
        """Whether a process started in between: it says so, or counts from the beginning."""
        if self.started is not None and earlier.started is not None:
            return self.started != earlier.started
        return self.generated is not None and self.generated < (earlier.generated or 0.0)

    def rate_since(self, earlier: "Counters | None") -> float:
        """Tokens per second between two readings of one process; 0 when that is not known."""
        if earlier is None or earlier.generated is None or self.generated is None or self.at <= earlier.at:
            return 0.0
        return max(0.0, self.generated - earlier.generated) / (self.at - earlier.at)


def health_problem(url: str, deadline_s: float) -> str:
    """Why the engine cannot take part; empty if it can."""
    try:
        call("GET", url, "/health", deadline_s)
    except CallFailed as error:
        return str(error) or "not healthy"
    return ""


def is_paused(url: str, deadline_s: float) -> bool:
    """Whether sampling is stopped; an engine that does not answer counts as paused."""
    try:
        return bool(get_json(url, "/is_paused", deadline_s)["is_paused"])
    except CallFailed:
        return True


def label(url: str, deadline_s: float) -> str | None:
    """Version label in force; None from an engine that does not say."""
    try:
        return str(get_json(url, "/weight_info", deadline_s)["weight_version"])
    except CallFailed:
        return None


def counters(url: str, deadline_s: float) -> Counters:
    """The metrics that are looked at here."""
    try:
        values = parse_prometheus(call("GET", url, "/metrics", deadline_s).decode(errors="replace"))
    except (CallFailed, ValueError):
        return Counters(time.monotonic())
    return Counters(time.monotonic(), values.get(STARTED), values.get(GENERATED))


def member(url: str, deadline_s: float) -> Member:
    """What a transport has to know. CallFailed if the engine does not say how many ranks it has."""
    ranks = int(get_json(url, "/get_world_size", deadline_s)["world_size"])
    try:
        version = str(get_json(url, "/version", deadline_s)["version"])
    except (CallFailed, KeyError):
        version = None
    return Member(url, ranks, version)
