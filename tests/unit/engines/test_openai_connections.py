"""Clients of the OpenAI routes that leave, and engines that fail while they answer."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web

from tests.support.engine_harness import until
from tests.support.openai_client import asked


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_leaves_nothing_in_the_log(
    folder: Path, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    async with asked(folder) as (engine, client):
        metrics = engine.server.engine.metrics
        body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": stream}
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        port = int(engine.url.rpartition(":")[2])

        async def leaves(wait_s: float, end: int, how: str) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + data[:end])
            await writer.drain()
            await asyncio.sleep(wait_s)
            getattr(writer.transport, how)()

        for wait_s in (0.0, 0.01, 0.05, 0.1, 0.2):
            ends = (len(data), len(data) // 2, 0)  # in the answer, in the body, before the body
            await asyncio.gather(*(leaves(wait_s, end, how) for end in ends for how in ("abort", "close")))
        await until(lambda: metrics.running == metrics.waiting == 0)
        answer = await client.completions.create(model="model", prompt="Once", max_tokens=1)
        assert len(answer.choices) == 1
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_a_connection_that_closes_between_two_writes_leaves_nothing_in_the_log(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import openai

    async with asked(folder) as (engine, client):
        write, seen = web.StreamResponse.write, list[int]()

        async def closing(self: web.StreamResponse, data: Any) -> None:
            seen.append(len(data))
            if len(seen) == 2:  # aiohttp says so where the handler is not cancelled yet
                raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")
            await write(self, data)

        monkeypatch.setattr(web.StreamResponse, "write", closing)
        stream = await client.completions.create(model="model", prompt="Once", max_tokens=100, stream=True)
        with pytest.raises((httpx.RemoteProtocolError, openai.APIConnectionError)):
            _ = [one async for one in stream]
        await until(lambda: engine.server.engine.metrics.running == 0)
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_leaving_a_stream_aborts_it_and_an_abort_ends_it(folder: Path) -> None:
    async with asked(folder) as (engine, client):
        metrics = engine.server.engine.metrics
        kwargs: dict[str, Any] = {"model": "model", "prompt": "Once", "max_tokens": 500}
        body = {"ignore_eos": True, "request_id": "mine"}
        stream = await client.completions.create(stream=True, extra_body=body, **kwargs)
        await anext(aiter(stream))
        await stream.close()
        await until(lambda: metrics.finished["abort"] == 1 and metrics.running == 0)
        stream = await client.completions.create(stream=True, extra_body=body, **kwargs)
        await anext(aiter(stream))
        assert (await engine.post("/abort_requests", {"request_ids": ["mine"]}))["aborted"] == 1
        reasons = [one.choices[0].finish_reason async for one in stream]
        assert reasons[-1] == "abort" and set(reasons[:-1]) <= {None}


async def test_an_engine_that_fails_in_a_stream_is_an_error_of_the_client(folder: Path) -> None:
    import openai

    async with asked(folder) as (engine, client):
        stream = await client.completions.create(
            model="model", prompt="a", max_tokens=500, stream=True, extra_body={"ignore_eos": True}
        )
        await anext(aiter(stream))
        engine.backend.model.module.model.norm.weight.data.fill_(float("nan"))
        with pytest.raises(openai.APIError, match="log-probability nan"):
            async with asyncio.timeout(200):
                _ = [one async for one in stream]
