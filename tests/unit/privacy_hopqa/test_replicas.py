"""Several retrieval servers as one: searches are spread, the dead are left out, and come back."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from domains.privacy_hopqa.agent import replicas
from domains.privacy_hopqa.agent.audit import Audit, AuditLog, RolloutIdentity
from domains.privacy_hopqa.agent.errors import TransportFailure
from domains.privacy_hopqa.agent.interfaces import Search
from domains.privacy_hopqa.agent.replicas import Replicas, ReplicatedClient
from domains.privacy_hopqa.agent.search_service import HttpSearcher, ServedWorlds, ask_health
from domains.privacy_hopqa.agent.transport import Retries
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from tests.support.one_line import check_one_line
from tests.support.processes import free_port

FAST = Retries(backoff_s=(0.01,), jitter=0.0)
PATIENT = Retries(backoff_s=(0.02,), jitter=0.0, outage_s=200.0)
SEARCH = "/browsecomp/search"


class Server:
    """A retrieval server that can be killed, started again on its port, made slow, silent or busy."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.searches = 0
        self.world = "ours"
        self.status = 200
        self.silent = asyncio.Event()
        self.silent.set()
        self._runner: web.AppRunner | None = None

    async def _answer(self, request: web.Request) -> web.Response:
        await self.silent.wait()
        if request.path == "/health":
            body = {"status": "ok", "fingerprint": self.world}
            return web.json_response(body, headers={"X-World": self.world})
        self.searches += 1
        await asyncio.sleep(0.01)
        return web.json_response({"hits": []}, status=self.status, headers={"X-World": self.world})

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def kill(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


Pair = tuple[Server, Server]


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    """Two servers, and waits that a test can wait for."""
    monkeypatch.setattr(replicas, "LEAVE_OUT_S", (0.05,))
    servers = Server(), Server()
    for server in servers:
        await server.start()
    yield servers
    for server in servers:
        server.silent.set()
        await server.kill()


@asynccontextmanager
async def client_of(pair: Pair, retries: Retries = FAST) -> AsyncIterator[ReplicatedClient]:
    admit = partial(ask_health, expected="ours")
    with TemporaryDirectory() as folder:
        found = Replicas([server.url for server in pair], admit, ServedWorlds(Path(folder)).check)
        async with aiohttp.ClientSession() as session:
            yield found.client(session, 200.0, retries)


async def ask(client: ReplicatedClient, count: int) -> None:
    """So many searches side by side, each of which is answered."""
    answers = await asyncio.gather(*(client.post(SEARCH, {"query": "q"}) for _ in range(count)))
    assert answers == [{"hits": []}] * count


async def until_searched(client: ReplicatedClient, server: Server) -> None:
    """Searches go on until `server` gets one."""
    before = server.searches
    async with asyncio.timeout(200):
        while server.searches == before:
            await ask(client, 4)


async def test_searches_are_spread_evenly(pair: Pair) -> None:
    async with client_of(pair) as client:
        await ask(client, 2)
        before = [server.searches for server in pair]
        await ask(client, 40)
    assert [server.searches - was for server, was in zip(pair, before)] == [20, 20]


async def test_a_dead_one_is_left_out_and_comes_back(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    alive, dead = pair
    async with client_of(pair) as client:
        await until_searched(client, dead)
        await dead.kill()
        await ask(client, 20)
        (line,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
        check_one_line(line, f"{dead.url}{SEARCH}: ")
        assert line.endswith("left out, 1 of 2 retrieval servers serve")
        before = alive.searches
        await ask(client, 20)
        assert alive.searches == before + 20
        await dead.start()
        await until_searched(client, dead)
    assert f"{dead.url} answers again" in caplog.messages


async def test_one_that_never_started_holds_up_nobody(pair: Pair) -> None:
    alive, dead = pair
    await dead.kill()
    async with client_of(pair) as client:
        await ask(client, 10)
    assert (alive.searches, dead.searches) == (10, 0)


async def test_when_all_are_dead_one_line_names_each(pair: Pair) -> None:
    async with client_of(pair) as client:
        await ask(client, 4)
        for server in pair:
            await server.kill()
        with pytest.raises(TransportFailure) as error:
            await client.post(SEARCH, {"query": "q"})
    check_one_line(str(error.value), "none of 2 retrieval servers can be asked: ")
    assert all(f"{server.url}/health: ClientConnectorError" in str(error.value) for server in pair)


async def test_an_outage_of_all_is_survived_as_long_as_the_key_says(pair: Pair) -> None:
    async with client_of(pair, PATIENT) as client:
        await ask(client, 4)
        for server in pair:
            await server.kill()
        waiting = asyncio.ensure_future(ask(client, 4))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await pair[1].start()
        async with asyncio.timeout(200):
            await waiting


async def test_one_that_falls_silent_is_given_up_by_its_health(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its host loses the network: no answer and no error, long before the search's own deadline."""
    monkeypatch.setattr(replicas, "WATCH_S", 0.1)
    monkeypatch.setattr(replicas, "HEALTH_DEADLINE_S", 2.0)
    async with client_of(pair) as client:
        await until_searched(client, pair[0])
        pair[0].silent.clear()
        async with asyncio.timeout(150):
            await ask(client, 20)
        pair[0].silent.set()
        await until_searched(client, pair[0])


@pytest.mark.parametrize("status", [429, 500])
async def test_a_busy_one_is_not_left_out(pair: Pair, status: int) -> None:
    async with client_of(pair) as client:
        await ask(client, 2)
        pair[0].status = pair[1].status = status
        with pytest.raises(TransportFailure, match=f"{SEARCH} answered {status} .2 attempts"):
            await client.post(SEARCH, {"query": "q"})
        pair[0].status = pair[1].status = 200
        await ask(client, 2)


async def test_one_that_loads_is_left_out(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(pair) as client:
        await ask(client, 2)
        pair[0].status = 503
        await ask(client, 10)
    assert [line for line in caplog.messages if line.startswith(f"{pair[0].url}{SEARCH} answered 503")]


async def test_one_of_another_world_gets_no_searches(pair: Pair) -> None:
    pair[0].world = "another"
    async with client_of(pair) as client:
        await ask(client, 6)
        assert (pair[0].searches, pair[1].searches) == (0, 6)
    pair[1].world = "another"
    async with client_of(pair) as client:
        with pytest.raises(ValueError, match=r"none of 2 retrieval servers can be asked: .* serves"):
            await client.post(SEARCH, {"query": "q"})


async def test_one_that_is_exchanged_for_another_world_is_left_out(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """It answers all the while: only what it serves has changed."""
    async with client_of(pair) as client:
        await until_searched(client, pair[0])
        await until_searched(client, pair[1])
        pair[0].world = "another"
        await ask(client, 8)
        assert [line for line in caplog.messages if "are of world another, those before of ours" in line]
        pair[1].world = "another"
        with pytest.raises(ValueError, match=r"none of 2 retrieval servers can be asked: .* another"):
            await ask(client, 8)


async def test_each_request_that_leaves_is_audited(pair: Pair, tmp_path: Path) -> None:
    """Also the one that a dead server did not answer, before another one is asked."""
    who = RolloutIdentity("run", "r", None, True, "train", "DR1", "c", None)
    audit = Audit(AuditLog(tmp_path / "1.jsonl"), who)
    async with client_of(pair) as client:
        await until_searched(client, pair[0])
        await pair[0].kill()
        searcher = HttpSearcher(client, audit, PrivacyHopQASettings())
        wanted = Search("web", "cold chain", 5, "DR1", 1, 1, "a1")
        await asyncio.gather(*(searcher.search(wanted) for _ in range(8)))
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in (tmp_path / "1.jsonl").read_text().splitlines()
    ]
    ended = [line["status"] for line in lines if "status" in line]
    assert ended.count("ok") == 8 and ended.count("Unavailable") >= 1
    assert len([line for line in lines if "query" in line]) == len(ended)
