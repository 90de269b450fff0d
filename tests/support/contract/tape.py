"""Exchanges with a real engine: written down between client and server, and answered from afterwards.

A tape is a compressed file of JSON lines (`zcat`): what was recorded, then each test's requests with their
answers, in the order in which they were asked. Replaying keeps the order of events: an answer that came after
other requests had been made is held until they are made again, so that a generation outlasts the update that
happened meanwhile.
"""

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

HELD_S = 200.0
"""Longest that an answer waits for the requests it came after."""
METRICS = (
    "process_start_time_seconds",
    *("vllm:num_requests_running{", "vllm:num_requests_waiting{", "vllm:num_preemptions_total{"),
    *("vllm:kv_cache_usage_perc{", "vllm:request_success_total{"),
    *("vllm:prompt_tokens_total{", "vllm:generation_tokens_total{"),
    *("vllm:prefix_cache_queries_total{", "vllm:prefix_cache_hits_total{"),
)
"""What is written down of the metrics."""
TEMPORARY = re.compile(r"(?:/[\w.-]+)*/pytest-of-[^\s\"]*/")
"""Folders of the test run that is recorded, which tell nobody anything."""


@dataclass
class Exchange:
    """One request and its answer."""

    test: str
    method: str
    path: str
    request: Any
    status: int = 0
    """0: the client closed the connection before there was an answer."""
    answer: Any = None
    """Decoded JSON, or the text that is none."""
    after: list[int] = field(default_factory=list)
    """Which of the test's exchanges were asked for while this one was in flight; GETs do not count."""

    def key(self) -> str:
        """What makes two requests the same: not a random name, nor where a weight file lies."""
        request = self.request
        if isinstance(request, dict):
            request = {name: value for name, value in request.items() if name != "request_id"}
            if "update_info" in request:
                request["update_info"] = request["update_info"].get("version")
        return f"{self.method} {self.path} {json.dumps(request, sort_keys=True)}"


@cache
def load(path: Path) -> tuple[dict[str, str], dict[str, list[Exchange]]]:
    """What was recorded and how, and the exchanges of each test."""
    header, *lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    tests: dict[str, list[Exchange]] = {}
    for line in lines:
        tests.setdefault(line["test"], []).append(Exchange(**line))
    return header, tests


def save(path: Path, header: dict[str, str], tests: dict[str, list[Exchange]]) -> None:
    """The other way round."""
    rows = [header, *(asdict(one) for name in sorted(tests) for one in tests[name])]
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    path.write_bytes(gzip.compress(TEMPORARY.sub("", text).encode(), mtime=0))


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode()


class Recorder:
    """Passes requests on to a real engine and writes down what it answers."""

    def __init__(self, target: str, test: str) -> None:
        self.exchanges: list[Exchange] = []
        self._target, self._test = target, test
        self._in_flight: list[Exchange] = []

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        asked = _decoded(body) if body else None
        one = Exchange(self._test, request.method, request.path_qs, asked)
        if request.method != "GET":
            for other in self._in_flight:
                other.after.append(len(self.exchanges))
        self.exchanges.append(one)
        self._in_flight.append(one)
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
                session.request(
                    request.method, self._target + request.path_qs, data=body or None, headers=headers
                ) as answer,
            ):
                content, status = await answer.read(), answer.status
        finally:
            # By identity: two questions that were asked alike are equal.
            self._in_flight = [other for other in self._in_flight if other is not one]
        if request.path == "/metrics":
            lines = [line for line in content.decode().splitlines() if line.startswith(METRICS)]
            content = ("\n".join(lines) + "\n").encode()
        # Together: a client that has gone meanwhile ends this method at an `await`.
        one.answer, one.status = _decoded(content), status
        return web.Response(body=content, status=status, content_type="application/json")


class Player:
    """Answers as the recorded engine did; a request that is not on the tape is an error 500 that says so."""

    def __init__(self, exchanges: Sequence[Exchange]) -> None:
        self._exchanges = exchanges
        self._left: dict[str, list[int]] = {}
        self._looks: dict[str, dict[int, list[int]]] = {}
        done = 0
        for index, one in enumerate(exchanges):
            if one.method != "GET":
                self._left.setdefault(one.key(), []).append(index)
                done += 1
            elif one.status:  # else a question that a busy engine did not answer in time was asked again
                self._looks.setdefault(one.key(), {}).setdefault(done, []).append(index)
        self._asked: set[int] = set()
        self._in_flight = 0
        self._changed = asyncio.Condition()

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        wanted = Exchange("", request.method, request.path_qs, _decoded(body) if body else None).key()
        if wanted in self._looks:
            one = self._exchanges[self._look(self._looks[wanted])]
            return self._answer(one.status, one.answer)
        left = self._left.get(wanted)
        if not left:
            return self._answer(500, {"error": {"message": f"not on the tape, record it: {wanted[:300]}"}})
        index = left.pop(0) if len(left) > 1 else left[0]
        one = self._exchanges[index]
        self._in_flight += 1
        try:
            async with self._changed:
                self._asked.add(index)
                self._changed.notify_all()
                async with asyncio.timeout(HELD_S):
                    await self._changed.wait_for(lambda: self._asked.issuperset(one.after))
            if one.status == 0:
                await asyncio.sleep(HELD_S)
        finally:
            self._in_flight -= 1
        return self._answer(one.status, one.answer)

    def _look(self, looks: dict[int, list[int]]) -> int:
        """Which answer to a GET fits what was asked for so far: several ask, and not always equally often.

        `looks` are those of the tape by the number of requests before them. While something is in flight
        they come one after the other, otherwise the last one, which saw everything done.
        """
        reached = [done for done in looks if done <= len(self._asked)]
        found = looks[max(reached) if reached else min(looks)]
        return found.pop(0) if self._in_flight and len(found) > 1 else found[-1]

    @staticmethod
    def _answer(status: int, content: Any) -> web.Response:
        text = content if isinstance(content, str) else json.dumps(content)
        return web.Response(text=text, status=status, content_type="application/json")


@asynccontextmanager
async def listening(server: Recorder | Player) -> AsyncIterator[str]:
    """Its URL."""
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
