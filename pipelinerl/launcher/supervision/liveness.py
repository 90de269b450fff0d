"""Is a child alive? Its health check over HTTP, an engine's own counters, or the beat of a file.

Each watch is a thread of one child's start. It ends when the child is gone, or with a cause for killing it.
"""

import json
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from pipelinerl.base.heartbeat import BeatWatch
from pipelinerl.base.http import get_or_none
from pipelinerl.base.waits import StallDetector
from pipelinerl.engines.engine_metrics import StallWatch, parse_prometheus, running_and_tokens
from pipelinerl.launcher.supervision.spec import HealthCheck, HeartbeatCheck

_PROBE_DEADLINE_S = 2.0
_FIRST_PROBE_S = 0.05
_LATER_PROBE_S = 0.5
_TOKEN_DEADLINE_S = 30.0
_ONE_TOKEN = {"token_ids": [0], "sampling_params": {"max_tokens": 1, "detokenize": False}, "stream": False}


def is_healthy(url: str) -> bool:
    """Whether a GET of `url` is answered with 200, or a redis server answers a ping."""
    parts = urlsplit(url)
    if parts.scheme == "redis":
        return _answers_ping(parts.hostname or "127.0.0.1", parts.port or 6379)
    return get_or_none(url, _PROBE_DEADLINE_S) is not None


def _answers_ping(host: str, port: int) -> bool:
    """A redis server that asks for a password is alive too."""
    try:
        with socket.create_connection((host, port), timeout=_PROBE_DEADLINE_S) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False


def watch_health(
    health: HealthCheck,
    gone: threading.Event,
    on_healthy: Callable[[], None],
    on_silent: Callable[[str], None],
) -> None:
    """Report the first good answer, then a cause once the answers, or an engine's tokens, stay away."""
    pause = _FIRST_PROBE_S
    while not is_healthy(health.url):
        if gone.wait(pause):
            return
        pause = min(pause * 1.3, _LATER_PROBE_S)
    on_healthy()
    limit_s = health.liveness_deadline_s
    if limit_s is None:
        return
    answers = 0
    silence = StallDetector(answers, time.monotonic(), health.interval_s + 2 * _PROBE_DEADLINE_S)
    tokens = StallWatch(limit_s)
    while not gone.wait(health.interval_s):
        answers += is_healthy(health.url)
        silent_s = silence.look(answers, time.monotonic())
        if silent_s > limit_s:
            on_silent(f"no answer from its health check for {silent_s:.0f} s")
            return
        if silent_s == 0 and (running := _stalled(health, tokens)):
            on_silent(f"no new token for {limit_s:g} s with {running:g} requests running")
            return


def _stalled(health: HealthCheck, watch: StallWatch) -> float:
    """Requests that run without getting tokens; 0 for an engine that works, is paused or does not say."""
    url = health.engine_url
    body = get_or_none(f"{url}/metrics", _PROBE_DEADLINE_S) if url else None
    if body is None:
        return 0.0
    try:
        running, tokens = running_and_tokens(parse_prometheus(body.decode()))
    except ValueError:  # counters that nobody can read say nothing; the health check goes on
        return 0.0
    if not watch.stalled(running, tokens, time.monotonic()):
        return 0.0
    # Several HTTP processes write down what runs, and the last to write is not always the one that knows
    # best: an engine that answers a request for one token is not stalled.
    token = f"{url}/inference/v1/generate"
    if _is_paused(f"{url}/is_paused") or get_or_none(token, _TOKEN_DEADLINE_S, _ONE_TOKEN) is not None:
        watch.restart(time.monotonic())
        return 0.0
    return running


def _is_paused(url: str) -> bool:
    """What `{"is_paused": bool}` says; False for any other answer."""
    answer = get_or_none(url, _PROBE_DEADLINE_S)
    try:
        return answer is not None and json.loads(answer)["is_paused"] is True
    except (ValueError, TypeError, KeyError):
        return False


def watch_heartbeat(
    check: HeartbeatCheck, beats: BeatWatch, gone: threading.Event, on_silent: Callable[[str], None]
) -> None:
    """Report a cause once the beats stay away; `beats` has been watched since before the child's start."""
    while not gone.wait(check.interval_s):
        silent_s = beats.look()
        if silent_s > (check.silent_deadline_s if beats.alive else check.start_deadline_s):
            when = f"for {silent_s:.0f} s" if beats.alive else f"{silent_s:.0f} s after its start"
            on_silent(f"no sign of life {when}")
            return
