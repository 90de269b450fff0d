"""Is a child alive? Its health check over HTTP, an engine's own counters, or the beat of a file.

Each watch is a thread of one child's start. It ends when the child is gone, or with a cause for killing it.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from pipelinerl.base.heartbeat import BeatWatch
from pipelinerl.base.http import CallFailed, call
from pipelinerl.base.waits import StallDetector
from pipelinerl.inference.engine_metrics import StallWatch, parse_prometheus, running_and_tokens
from pipelinerl.launcher.supervision.spec import HealthCheck, Pulse

_PROBE_TIMEOUT_S = 2.0
_FIRST_PROBE_S = 0.05
_LATER_PROBE_S = 0.5
_TOKEN_TIMEOUT_S = 30.0
_ONE_TOKEN = {"token_ids": [0], "sampling_params": {"max_tokens": 1, "detokenize": False}, "stream": False}


def get(url: str, timeout_s: float = _PROBE_TIMEOUT_S, body: dict[str, Any] | None = None) -> bytes | None:
    """The body of a 200 answer to a GET, or to a POST of a JSON `body`; else None. Uses no proxy."""
    parts = urlsplit(url)
    if parts.scheme == "redis":
        return _ping(parts.hostname or "127.0.0.1", parts.port or 6379, timeout_s)
    try:
        return call("GET" if body is None else "POST", url, "", timeout_s, body)
    except CallFailed:
        return None


def _ping(host: str, port: int, timeout_s: float) -> bytes | None:
    """What a redis server says to a ping; one that asks for a password is alive too."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
    except OSError:
        return None
    return answer if answer.startswith((b"+PONG", b"-NOAUTH")) else None


def watch_health(
    health: HealthCheck,
    gone: threading.Event,
    on_healthy: Callable[[], None],
    on_silent: Callable[[str], None],
) -> None:
    """Report the first good answer, then a cause once the answers, or an engine's tokens, stay away."""
    pause = _FIRST_PROBE_S
    while get(health.url) is None:
        if gone.wait(pause):
            return
        pause = min(pause * 1.3, _LATER_PROBE_S)
    on_healthy()
    limit_s = health.liveness_deadline_s
    if limit_s is None:
        return
    answers = 0
    silence = StallDetector(answers, time.monotonic(), health.interval_s + 2 * _PROBE_TIMEOUT_S)
    tokens = StallWatch(limit_s)
    while not gone.wait(health.interval_s):
        answers += get(health.url) is not None
        silent_s = silence.look(answers, time.monotonic())
        if silent_s > limit_s:
            on_silent(f"no answer from its health check for {silent_s:.0f} s")
            return
        if silent_s == 0 and (running := _stalled(health, tokens)):
            on_silent(f"no new token for {limit_s:g} s with {running:g} requests running")
            return


def _stalled(health: HealthCheck, watch: StallWatch) -> float:
    """Requests that run without getting tokens; 0 for an engine that works, is paused or does not say."""
    body = get(health.metrics_url) if health.metrics_url else None
    if body is None:
        return 0.0
    try:
        running, tokens = running_and_tokens(parse_prometheus(body.decode()))
    except ValueError:  # counters that nobody can read say nothing; the health check goes on
        return 0.0
    if not watch.stalled(running, tokens, time.monotonic()):
        return 0.0
    paused = health.paused_url is not None and _is_paused(health.paused_url)
    if paused or (health.generate_url and get(health.generate_url, _TOKEN_TIMEOUT_S, _ONE_TOKEN) is not None):
        watch.restart(time.monotonic())
        return 0.0
    return running


def _is_paused(url: str) -> bool:
    """What `{"is_paused": bool}` says; False for any other answer."""
    answer = get(url)
    try:
        return answer is not None and json.loads(answer)["is_paused"] is True
    except (ValueError, TypeError, KeyError):
        return False


def watch_pulse(pulse: Pulse, last: int, gone: threading.Event, on_silent: Callable[[str], None]) -> None:
    """Report a cause once the beats stay away; `last` is that of an earlier start."""
    watch = BeatWatch(pulse.path, pulse.interval_s, last)
    while not gone.wait(pulse.interval_s):
        silent_s = watch.look()
        if silent_s > (pulse.silent_deadline_s if watch.alive else pulse.start_deadline_s):
            when = f"for {silent_s:.0f} s" if watch.alive else f"{silent_s:.0f} s after its start"
            on_silent(f"no sign of life {when}")
            return
