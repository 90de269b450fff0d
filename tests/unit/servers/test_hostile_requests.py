"""Bytes that no client should send to any server of the project: a refusal, and at most one line of a log."""

import asyncio
import gzip
import json
import logging
import random
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import compression_utils
from aiohttp.test_utils import TestServer

from domains.math import MathEnvironment
from domains.math.service import make_app
from domains.privacy_hopqa.scorer.app import ScoringService
from domains.privacy_hopqa.scorer.app import build_app as scorer_app
from domains.privacy_hopqa.scorer.classifiers import RulesClassifier
from pipelinerl.extras import recorder
from pipelinerl.llm import TrainableLLM
from retrieval_server.app import RetrievalService
from retrieval_server.app import build_app as retrieval_app
from retrieval_server.store import Store
from tests.support.builders import make_task
from tests.support.engine_harness import running_engine
from tests.support.text_model import build_text_model

ANSWER_S = 100.0
ENCODINGS = ("gzip", "deflate", "br", "zstd", "identity", "rot13")
ROUTES = {
    "engine": (
        "/inference/v1/generate",
        "/v1/completions",
        "/v1/chat/completions",
        "/abort_requests",
        "/init_weight_transfer_engine",
        "/update_weights",
        "/finish_weight_update",
        "/update_weight_version",
    ),
    "retrieval": ("/local/search", "/browsecomp/search"),
    "scorer": ("/score",),
    "verifier": ("/verify_answer",),
    "recorder": tuple(
        f"/r/TOKEN/{name}"
        for name in (
            "v1/chat/completions",
            "v1/completions",
            "v1/responses",
            "v1/messages",
            "inference/v1/generate",
        )
    ),
}
ALIVE = {"recorder": "/r/TOKEN/v1/models"}
"""What is asked at the end, where it is not `/health`."""


@asynccontextmanager
async def serving(name: str, folder: Path) -> AsyncIterator[int]:
    """The port of a running server."""
    if name == "engine":
        async with running_engine(build_text_model(folder), max_model_len=128) as engine:
            yield int(engine.url.rpartition(":")[2])
        return
    if name == "recorder":
        model = str(build_text_model(folder))
        llm = TrainableLLM(model_name=model, base_url="http://127.0.0.1:9", context_size=128, max_retries=0)
        async with recorder.session(llm, token="TOKEN") as session:
            yield int(session.base_url.split(":")[2].partition("/")[0])
        await recorder.close()
        return
    if name == "retrieval":
        page = {"docid": "1", "url": "https://a.example/1", "text": "cold chain audit"}
        (folder / "web.jsonl").write_text(json.dumps(page) + "\n")
        make_task(folder / "tasks/one")
        app = retrieval_app(RetrievalService(Store.load(folder / "tasks", folder / "web.jsonl")))
    elif name == "scorer":
        app = scorer_app(ScoringService(RulesClassifier()))
    else:
        app = make_app(MathEnvironment(workers=1, deadline_s=100.0).pool())
    async with TestServer(app) as server:
        assert server.port is not None
        yield server.port


async def sent(port: int, data: bytes) -> int:
    """Status of the answer to raw bytes; 0 where the connection is only closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with suppress(ConnectionError):  # a server that has answered need not read the rest
            writer.write(data)
            await writer.drain()
        async with asyncio.timeout(ANSWER_S):
            line = b""
            with suppress(ConnectionError):
                line = await reader.readline()
        return int(line.split()[1]) if line else 0
    finally:
        writer.close()


def request(route: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {route} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def random_body(draw: random.Random, route: str) -> bytes:
    """Noise as it is, under an encoding that it may not have, half compressed, or in broken chunks."""
    noise = draw.randbytes(draw.randrange(400))
    kind = draw.randrange(6)
    if kind == 0:
        return request(route, noise, "Content-Type: application/json")
    if kind == 1:
        return request(route, noise, f"Content-Encoding: {draw.choice(ENCODINGS)}")
    if kind == 2:
        whole = gzip.compress(json.dumps({"query": "x", "text": noise.hex()}).encode())
        return request(route, whole[: draw.randrange(len(whole))], "Content-Encoding: gzip")
    if kind == 3:
        whole = bytearray(zlib.compress(b"{" + noise))
        whole[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        return request(route, bytes(whole), "Content-Encoding: deflate")
    if kind == 4:
        head = (
            f"POST {route} HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        return head.encode() + draw.choice([b"zz\r\n", b"-1\r\n\r\n", b"3\r\nabcd\r\n0\r\n\r\n"])
    text = json.dumps(draw.choice([[], {}, 1, "x", {"query": noise.hex()}, {"prompt": noise.hex(), "n": -1}]))
    return request(route, text.encode())


INVALID_HEADS = (
    b"\r\n\r\n\r\n\x00\x01\x02",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS greeting
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"POST /score HTTP/1.1\r\nContent-Length: many\r\n\r\n",
    b"POST /score HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    b"POST /score HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\r\nno colon here\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: \x00\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"b" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(20_000)) + b"\r\n",
)


async def besiege(port: int, routes: tuple[str, ...], bodies: int, large: int, alive: str) -> int:
    """Everything that a hostile client may do; returns the number of requests."""
    draw, count = random.Random(7), 0
    half_open = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
    for number, (_, writer) in enumerate(half_open):
        writer.write(request(routes[0], b"x" * 1000)[: 10 * number])
    for head in INVALID_HEADS:
        assert await sent(port, head) in (0, 400, 404, 405, 431), head[:60]
        count += 1
    for route in routes:
        for _ in range(bodies):
            data = random_body(draw, route)
            cut = draw.randrange(20) == 0
            if cut:  # a client that goes away
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(data[: draw.randrange(len(data))])
                writer.close()
            else:
                status = await sent(port, data)
                assert status == 0 or 200 <= status < 500, (route, status, data[:300])
            count += 1
        assert await sent(port, request(route, b"[" * large)) in (0, 400, 413), route
        bomb = gzip.compress(bytes(large))
        assert await sent(port, request(route, bomb, "Content-Encoding: gzip")) in (0, 415), route
        count += 2
    for _, writer in half_open:
        writer.close()
    asked = f"GET {alive} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert await sent(port, asked.encode()) == 200
    return count


async def check(name: str, folder: Path, caplog: pytest.LogCaptureFixture, bodies: int, large: int) -> None:
    async with serving(name, folder) as port:
        count = await besiege(port, ROUTES[name], bodies, large, ALIVE.get(name, "/health"))
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in records if record.exc_info] == []
    assert [text for record in records if "\n" in (text := record.getMessage())] == []
    assert len(records) <= count + 50, "more than one line for a request"


@pytest.mark.parametrize("name", ROUTES)
async def test_a_hostile_client_is_answered_in_400s_and_leaves_no_traceback(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await check(name, tmp_path, caplog, bodies=60, large=300_000)


@pytest.mark.parametrize("name", ROUTES)
async def test_a_compressed_body_is_refused_and_never_inflated(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte holds a gigabyte, of which aiohttp would inflate some also after the refusal."""
    monkeypatch.setattr(compression_utils.ZLibDecompressor, "decompress_sync", lambda *_, **__: 1 / 0)
    async with serving(name, tmp_path) as port:
        for route in ROUTES[name]:
            for coding, body in (
                ("gzip", gzip.compress(b"{}")),
                ("Deflate", zlib.compress(b"{}")),
                ("br", b"{}"),
            ):
                data = request(route, body, f"Content-Encoding: {coding}", "Content-Type: application/json")
                assert await sent(port, data) == 415, (route, coding)
            assert await sent(port, request(route, b"{}", "Content-Encoding: identity")) != 415


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ROUTES)
async def test_2000_random_bodies_for_each_route_and_64_mb(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await check(name, tmp_path, caplog, bodies=2000, large=64 * 2**20)
