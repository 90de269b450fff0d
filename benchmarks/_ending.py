"""The end of a wave: what an HTTP process takes for answers whose last token was sampled in the same step.

Requests are taken in while the engine is paused, so that all begin in its next step; being of one length they
end in one. vLLM builds all answers of a step before it sends the first, so the time between the answers says
nothing. A probe asks the process for nothing meanwhile (`/ping`): it began on the answers when it was asked
the question that it left waiting until they were there.
"""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from pipelinerl.inference.vllm import pause_routes

PROBE_INTERVAL_S, PROBE_DEADLINE_S = 0.03, 60.0
QUIET_S, TAKEN_IN_S = 0.3, 120.0
"""Without processor time for so long, a process has taken in what it was sent; it has to until the other."""
NEAR_S = 0.02
"""A question answered so shortly before the first answer waited for the answers."""

Bodies = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Asked:
    """A question to the process: when, when it was answered, and its processor time before."""

    at: float
    answered: float
    cpu_s: float


@dataclass(frozen=True)
class Ending:
    """What the answers of one step took."""

    answers: int
    seconds: float
    """From when the process began on them to the last."""
    spread_s: float
    """From the first to the last."""
    cpu_s: float
    """Of the process meanwhile."""


class Probe:
    """Asks an HTTP process for nothing, all the time, and once more at the end; as a context manager.

    `asked` grows meanwhile.
    """

    def __init__(self, url: str, cpu: Callable[[], float]) -> None:
        """`cpu`: processor seconds of the process so far."""
        self.asked: list[Asked] = []
        self._where, self._cpu, self._ended = urlsplit(url).netloc, cpu, threading.Event()
        self._thread = threading.Thread(target=self._ask, name="probe", daemon=True)

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(PROBE_DEADLINE_S)

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(self._where, timeout=PROBE_DEADLINE_S)
        ended = False
        while not ended:
            ended = self._ended.wait(PROBE_INTERVAL_S)
            spent, at = self._cpu(), time.monotonic()
            connection.request("GET", "/ping")
            connection.getresponse().read()
            self.asked.append(Asked(at, time.monotonic(), spent))


def ending_of(asked: Sequence[Asked], answered: Sequence[float], cpu_s: float) -> Ending:
    """From the questions of a probe, the times of the answers, and the processor time after the last."""
    first, last = min(answered), max(answered)
    begun = next(one for one in asked if one.answered >= first - NEAR_S)
    return Ending(len(answered), last - min(begun.at, first), last - first, max(0.0, cpu_s - begun.cpu_s))


async def end_together(url: str, bodies: Bodies, cpu: Callable[[], float]) -> Ending:
    """Make requests of one length at once, to be answered at once; SystemExit if one is refused."""
    routes, answered = pause_routes("any", clear_cache=False), list[float]()

    async def post(path: str, body: dict[str, Any] | None = None) -> None:
        async with session.post(f"{url}{path}", json=body) as answer:
            content = await answer.read()
            if answer.status != 200:
                raise SystemExit(f"{path}: status {answer.status}: {content[:300]!r}")

    async def one(body: dict[str, Any]) -> None:
        await post("/inference/v1/generate", body)
        answered.append(time.monotonic())

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await post(routes.pause)
        requests = [asyncio.create_task(one(body)) for body in bodies]
        spent, end = -1.0, time.monotonic() + TAKEN_IN_S
        while (now := cpu()) != spent:
            if time.monotonic() > end:
                raise SystemExit(f"{url} has not taken in {len(bodies)} requests within {TAKEN_IN_S:g} s")
            spent = now
            await asyncio.sleep(QUIET_S)
        await post(routes.resume)
        with Probe(url, cpu) as probe:
            await asyncio.gather(*requests)
            spent = cpu()
    return ending_of(probe.asked, answered, spent)
