"""What an engine's own counters say: the Prometheus text, when it started, whether it has stopped producing.

The fleet, the supervisor and the publisher of weights look at engines with these; no I/O and no clock here.
"""

from collections.abc import Mapping

from pipelinerl.base.waits import StallDetector

GENERATED = "vllm:generation_tokens_total"


def parse_prometheus(text: str) -> dict[str, float]:
    """Samples of the Prometheus text format: by name with labels, and summed over labels by bare name."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        # From the right: label values may hold spaces, numbers do not.
        series, _, number = line.rpartition(" ")
        value = float(number)
        values[series] = value
        name, brace, _ = series.partition("{")
        if brace:
            values[name] = values.get(name, 0.0) + value
    return values


def running_and_tokens(metrics: Mapping[str, float]) -> tuple[float, float]:
    """Requests that run now, and tokens processed since the start."""
    # Prompts count as well: an engine that computes long ones gets on without sampling anything.
    tokens = metrics.get(GENERATED, 0.0) + metrics.get("vllm:prompt_tokens_total", 0.0)
    return metrics.get("vllm:num_requests_running", 0.0), tokens


# When the process started, in seconds since 1970; our plug-in to vLLM says it where several HTTP processes
# share counters (`pipelinerl.engines.vllm.options`).
STARTED = "process_start_time_seconds"


class StartWatch:
    """When the process behind a URL started, also where it does not say so: its counters begin again at 0."""

    def __init__(self) -> None:
        self._tokens = -1.0
        self._restarted_at = 0.0

    def started_at(self, metrics: Mapping[str, float], now: float) -> float:
        """Seconds since 1970, as is `now`; 0 as long as nothing is known. Call it regularly."""
        _, tokens = running_and_tokens(metrics)
        # Counters only grow while a process lives.
        if tokens < self._tokens:
            self._restarted_at = now
        self._tokens = tokens
        return metrics.get(STARTED, self._restarted_at)


class CacheWatch:
    """What an engine's prefix cache was asked for since the last look; it counts in tokens of prompts."""

    def __init__(self) -> None:
        self._seen: tuple[float, float] | None = None

    def since_last(self, metrics: Mapping[str, float]) -> tuple[float, float]:
        """Tokens looked for, and of these the ones found; (0, 0) at the first look."""
        queries = metrics.get("vllm:prefix_cache_queries_total", 0.0)
        hits = metrics.get("vllm:prefix_cache_hits_total", 0.0)
        before = self._seen or (queries, hits)
        self._seen = queries, hits
        # Counters of a new process begin at 0.
        if queries < before[0]:
            before = (0.0, 0.0)
        return queries - before[0], hits - before[1]


class StallWatch(StallDetector):
    """Decides, from counters seen over time, whether an engine has stopped producing."""

    def __init__(self, stall_s: float) -> None:
        super().__init__(seen=None, now=0.0)
        self._stall_s = stall_s

    def stalled(self, running: float, tokens: float, now: float) -> bool:
        """True when requests have been running for `stall_s` without a new token; call it regularly."""
        # Without requests no token is due: the wait begins with the first one.
        if running == 0:
            self.restart(now)
        return self.look(tokens, now) >= self._stall_s
