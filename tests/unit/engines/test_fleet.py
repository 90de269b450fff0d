"""Client and fleet against engines that fail on purpose."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pipelinerl.engines.answers import LiveAnswer, Tokens
from pipelinerl.engines.client import (
    AbortedCompletion,
    Deadlines,
    EngineClient,
    EngineRequestError,
    EngineUnavailable,
    SamplingParams,
)
from pipelinerl.engines.engine_metrics import StallWatch, StartWatch
from pipelinerl.engines.fleet import Fleet
from tests.support.engine_harness import until
from tests.support.fake_engine import FakeEngine

SAMPLING = SamplingParams(max_tokens=2)
QUICK = Deadlines(connect_s=60, generate_s=200, stall_s=0.3, health_s=60, health_interval_s=0.05)
Behaviour = Callable[[], Awaitable[web.Response]]


class Engine(FakeEngine):
    """An engine in the test's event loop, whose answers the test chooses."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: [7, 8], version="5")  # "" is an engine without labels
        self.behaviour: Behaviour = self.sampled
        self.stream: Streaming | None = None
        self.healthy, self.started = True, 100.0
        self.requests: list[dict[str, Any]] = []
        self.running, self.generated, self.closed = 0, 9, 0
        self.cache_queries, self.cache_hits = 0, 0
        self.works = False
        """Whether each look at its counters finds a new token."""

    async def sampled(self, finish_reason: str = "length", **changes: Any) -> web.Response:
        reply = self.reply([7, 8], finish_reason)
        reply["choices"][0] |= changes
        return web.json_response(reply)

    def fail(self, status: int) -> Behaviour:
        async def behaviour() -> web.Response:
            return web.json_response({"error": {"message": f"no {status}"}}, status=status)

        return behaviour

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.running += 1
        try:
            if self.stream is not None:
                return await self.stream(request)
            return await self.behaviour()
        except asyncio.CancelledError:
            self.closed += 1
            raise
        finally:
            self.running -= 1

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        label = '{model_name="m"}'
        self.generated += self.works
        return web.Response(
            text=f"vllm:num_requests_running{label} {self.running}\n"
            f"vllm:generation_tokens_total{label} {self.generated}\n"
            f"vllm:prefix_cache_queries_total{label} {self.cache_queries}\n"
            f"vllm:prefix_cache_hits_total{label} {self.cache_hits}\n"
            f"process_start_time_seconds {self.started}\n"
        )

    async def _weight_info(self, request: web.Request) -> web.Response:
        if self.version == "":
            raise web.HTTPNotFound
        return await super()._weight_info(request)


@asynccontextmanager
async def fake_engine() -> AsyncIterator[Engine]:
    engine = Engine()
    runner = await engine.listen()
    engine.stop = runner.cleanup  # type: ignore[attr-defined]
    try:
        yield engine
    finally:
        await runner.cleanup()


@asynccontextmanager
async def fleet_of(
    count: int, *, announced: int | None = None, announced_at: Callable[[], float] = lambda: 200.0
) -> AsyncIterator[tuple[Fleet, list[Engine]]]:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(fake_engine()) for _ in range(count)]
        session = await stack.enter_async_context(aiohttp.ClientSession())
        urls = [one.url for one in engines]
        fleet = Fleet(urls, session, QUICK, announced_version=lambda: announced, announced_at=announced_at)
        await stack.enter_async_context(fleet)
        yield fleet, engines


@asynccontextmanager
async def client_of(**deadlines: float) -> AsyncIterator[tuple[EngineClient, Engine]]:
    async with fake_engine() as engine, aiohttp.ClientSession() as session:
        yield EngineClient(engine.url, session, deadlines=Deadlines(**deadlines)), engine


async def hang() -> web.Response:
    await asyncio.sleep(600)
    return web.Response()


async def test_errors_say_whether_asking_again_can_help() -> None:
    async with client_of() as (client, engine):
        engine.behaviour = engine.fail(400)
        with pytest.raises(EngineRequestError, match="HTTP 400: no 400"):
            await client.generate([1], SAMPLING)
        for status, reason in ((503, "busy"), (500, "server_error")):
            engine.behaviour = engine.fail(status)
            with pytest.raises(EngineUnavailable) as unavailable:
                await client.generate([1], SAMPLING)
            assert unavailable.value.reason == reason
        engine.behaviour = lambda: engine.sampled("abort")
        with pytest.raises(AbortedCompletion):
            await client.generate([1], SAMPLING)
        engine.behaviour = lambda: engine.sampled(token_ids=[7, 9])
        with pytest.raises(EngineUnavailable, match="invalid_answer"):
            await client.generate([1], SAMPLING)
        engine.behaviour = hang
        with pytest.raises(EngineUnavailable, match=r"generate within 0.2 s passed its deadline"):
            await client.generate([1], SAMPLING, deadline_s=0.2)
        await engine.stop()  # type: ignore[attr-defined]
        with pytest.raises(EngineUnavailable, match="connection"):
            await client.generate([1], SAMPLING)
        counts = client.counts
        assert (counts.sent, counts.completed, counts.refused, counts.failed) == (7, 0, 1, 6)


async def test_cancelling_closes_the_connection() -> None:
    async with client_of() as (client, engine):
        engine.behaviour = hang
        call = asyncio.ensure_future(client.generate([1], SAMPLING))
        await until(lambda: engine.running > 0)
        call.cancel()
        await until(lambda: engine.closed > 0)
        assert client.counts.cancelled == 1


async def test_what_is_sent_is_what_was_asked() -> None:
    async with client_of() as (client, engine):
        await client.generate([1, 2], SamplingParams(max_tokens=2, temperature=0.5, top_k=3, seed=4), "id")
        assert engine.requests[0] == {
            "token_ids": [1, 2],
            "sampling_params": {
                "max_tokens": 2,
                "temperature": 0.5,
                "top_k": 3,
                "seed": 4,
                "logprobs": 0,
                "output_kind": 2,
                "flat_logprobs": True,
                "detokenize": False,
            },
            "request_id": "id",
            "stream": False,
        }


async def test_requests_of_an_engine_that_dies_are_made_elsewhere_from_the_prompt() -> None:
    async with fleet_of(2) as (fleet, (first, second)):
        first.behaviour = second.behaviour = hang
        first.works = second.works = True
        calls = [asyncio.ensure_future(fleet.generate([1, 2, 3], SAMPLING)) for _ in range(6)]
        await until(lambda: first.running + second.running == 6)
        assert first.running == 3, "the least busy engine is chosen"
        second.behaviour, second.works = second.sampled, False
        await first.stop()  # type: ignore[attr-defined]
        # Those that hang on the second engine are lost when it stalls; it is then asked again.
        generations = await asyncio.gather(*calls)
        assert [one.token_ids.tolist() for one in generations] == [[7, 8]] * 6
        assert all(one.engine == second.url for one in generations)
        assert {one["token_ids"][-1] for one in second.requests} == {3}
        assert fleet.counts.retries["connection"] >= 3
        assert fleet.counts.retries["stalled"] == 3
        assert fleet.counts.completed == 6
        assert fleet.in_rotation == [second.url]


async def test_a_fleet_that_closes_does_not_call_its_engines_stalled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fleet_of(1) as (fleet, (engine,)):
        engine.behaviour, engine.works = hang, True
        call = asyncio.ensure_future(fleet.generate([1, 2, 3], SAMPLING))
        await until(lambda: engine.running == 1)
        await fleet.close()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not fleet.counts.retries["stalled"]


async def test_a_busy_engine_is_asked_again_later() -> None:
    async with fleet_of(1) as (fleet, (engine,)):
        engine.behaviour = engine.fail(503)
        call = asyncio.ensure_future(fleet.generate([1], SAMPLING))
        await until(lambda: len(engine.requests) >= 3)
        engine.behaviour = engine.sampled
        assert (await call).tries >= 4
        assert fleet.counts.retries["busy"] >= 3


async def test_a_refused_request_is_not_repeated() -> None:
    async with fleet_of(2) as (fleet, engines):
        for one in engines:
            one.behaviour = one.fail(400)
        with pytest.raises(EngineRequestError):
            await fleet.generate([1], SAMPLING)
        assert sum(len(one.requests) for one in engines) == 1


async def test_an_engine_behind_the_announced_version_is_out_of_rotation() -> None:
    async with fleet_of(2, announced=5) as (fleet, (first, second)):
        assert fleet.in_rotation == [first.url, second.url]
        first.version = "default"
        await until(lambda: first.url not in fleet.in_rotation)
        first.version = "6"
        await until(lambda: first.url in fleet.in_rotation)


async def test_an_engine_without_labels_is_out_from_its_start_to_the_next_announcement() -> None:
    at = [200.0]
    async with fleet_of(1, announced=7, announced_at=lambda: at[0]) as (fleet, (engine,)):
        engine.version = ""
        await until(lambda: bool(fleet.in_rotation))
        engine.started = 300.0
        await until(lambda: not fleet.in_rotation)
        at[0] = 301.0
        await until(lambda: bool(fleet.in_rotation))


async def test_the_idle_share_counts_looks_at_engines_in_rotation() -> None:
    async with fake_engine() as engine, fake_engine() as sick, aiohttp.ClientSession() as session:
        patient = replace(QUICK, stall_s=600.0)
        fleet, sick.healthy = Fleet([engine.url, sick.url], session, patient), False
        await fleet._check_all()  # before the first look no engine is in rotation
        engine.behaviour = hang
        call = asyncio.ensure_future(fleet.generate([1], SAMPLING))
        await until(lambda: bool(engine.requests))
        for running in (1, 0, 3, 1):
            engine.running = running
            await fleet._check_all()
        assert (fleet.counts.checks, fleet.counts.idle_checks) == (4, 1)
        assert fleet.counts.as_dict()["engine_idle_share"] == 0.25
        assert fleet.counts.as_dict()["engine_running"] == 1.25
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await until(lambda: engine.closed == 1)
        engine.running = 1
        await fleet._check_all()
        assert fleet.counts.idle_checks == 2, (
            "nobody asked: what a second HTTP process wrote down last is old"
        )
        engine.running, engine.generated = 1, engine.generated + 1
        await fleet._check_all()
        assert fleet.counts.idle_checks == 2, "somebody else's request runs"


async def test_requests_find_blocks_of_the_announced_version_only() -> None:
    """Of the version that was announced when the request was sent, also when it is sent once more."""
    heard: list[int | None] = [None]
    async with fake_engine() as engine, aiohttp.ClientSession() as session:
        fleet = Fleet([engine.url], session, QUICK, announced_version=lambda: heard[-1])
        await fleet._check_all()
        await fleet.generate([1], SAMPLING)
        assert "cache_salt" not in engine.requests[-1], "the weights that engines were started with"

        async def announcing() -> web.Response:
            heard.append(6)
            engine.version, engine.behaviour = "6", engine.sampled
            return await engine.fail(503)()

        heard.append(5)
        engine.behaviour = announcing
        await fleet.generate([1], SAMPLING)
        await fleet.chat({"messages": []})
        salts = [one.get("cache_salt") for one in [*engine.requests[1:], *engine.chats]]
        assert salts == ["5", "6", "6"]


async def test_the_share_found_in_prefix_caches_counts_what_came_since_the_last_look() -> None:
    async with fake_engine() as engine, aiohttp.ClientSession() as session:
        fleet = Fleet([engine.url], session, QUICK)
        # What was asked for before this process looked is not counted; the last one is a new process.
        for engine.cache_queries, engine.cache_hits in ((100, 90), (300, 140), (300, 140), (200, 50)):
            await fleet._check_all()
        assert (fleet.counts.cache_queries, fleet.counts.cache_hits) == (400, 100)
        assert fleet.counts.as_dict()["prefix_cache_share"] == 0.25


async def test_waiting_for_an_engine_ends_with_the_reason_of_each() -> None:
    async with fleet_of(1) as (fleet, (engine,)):
        engine.healthy = False
        await until(lambda: not fleet.in_rotation)
        with pytest.raises(EngineUnavailable, match=r"wait for an engine.*health check failed"):
            await fleet.wait_ready(0.1)


def test_an_engine_that_does_not_say_when_it_started_is_seen_to_begin_again() -> None:
    watch = StartWatch()
    tokens = "vllm:generation_tokens_total"
    assert [watch.started_at({tokens: count}, now) for now, count in ((10.0, 5.0), (11.0, 6.0))] == [0.0, 0.0]
    assert watch.started_at({tokens: 0.0}, 12.0) == 12.0
    assert watch.started_at({tokens: 3.0}, 13.0) == 12.0
    assert watch.started_at({tokens: 4.0, "process_start_time_seconds": 9.0}, 14.0) == 9.0


def test_stall_needs_running_requests_and_no_progress() -> None:
    watch = StallWatch(10.0)
    assert not watch.stalled(running=1, tokens=5, now=0.0)
    assert not watch.stalled(running=1, tokens=5, now=9.0)
    assert watch.stalled(running=1, tokens=5, now=10.0)
    assert not watch.stalled(running=1, tokens=6, now=11.0)
    assert not watch.stalled(running=0, tokens=6, now=100.0)
    assert not watch.stalled(running=1, tokens=6, now=109.0)


class Streaming:
    """An engine's stream: these choices, a chunk each, as vLLM writes them; then what the test says."""

    def __init__(self, *choices: dict[str, Any], then: Behaviour | None = None) -> None:
        self._choices, self._then = choices, then

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for one in self._choices:
            await response.write(b"data: " + json.dumps({"choices": [one]}).encode() + b"\n\n")
        if self._then is not None:
            await self._then()
        await response.write(b"data: [DONE]\n\n")
        return response


def chunk(*ids: int, named: bool = True, **fields: Any) -> dict[str, Any]:
    names = [{"token_id": one} if named else {"token": f"token_id:{one}"} for one in ids]
    content = [{"logprob": -one / 8, **name} for one, name in zip(ids, names, strict=True)]
    return {"index": 0, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": None} | fields


def spans(*triples: tuple[str, int, int]) -> dict[str, Any]:
    return {"weight_versions": [{"version": v, "start": a, "end": b} for v, a, b in triples]}


END = {"finish_reason": "stop", "stop_reason": "x"}
STREAMS = {
    "vLLM from 0.32 on": Streaming(
        chunk(1, 2, weight_versions=None), chunk(3), chunk(4, **END, **spans(("4", 0, 2), ("5", 2, 4)))
    ),
    "earlier ones": Streaming(
        chunk(1, 2, named=False), chunk(3, named=False), chunk(4, named=False, finish_reason="stop")
    ),
    "embedded": Streaming(
        chunk(1, **spans(("4", 0, 1))),
        chunk(2, **spans(("4", 1, 2))),
        chunk(3, **spans(("5", 2, 3))),
        chunk(4, **END, **spans(("5", 3, 4))),
    ),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_of_any_engine_is_read_as_its_whole_answer(name: str) -> None:
    async with fleet_of(1, announced=3) as (fleet, (engine,)):
        engine.stream = STREAMS[name]
        heard: list[Tokens] = []
        one = await fleet.generate([9], SAMPLING, live=LiveAnswer(heard.append))
    assert [token for some in heard for token in some.ids] == [1, 2, 3], "the last comes with the answer"
    assert one.token_ids.tolist() == [1, 2, 3, 4]
    assert one.logprobs.tolist() == [-0.125, -0.25, -0.375, -0.5]
    known = name != "earlier ones"
    assert one.versions == ([(4, 0, 2), (5, 2, 4)] if known else [(3, 0, 4)]) and one.exact_versions is known
    assert (one.finish_reason, one.stop_reason) == ("stop", "x" if known else None)
    (request,) = engine.requests
    assert request["stream"] is True and request["sampling_params"]["output_kind"] == 1


LOST: dict[str, tuple[Streaming, str]] = {
    "stalled": (Streaming(chunk(7), then=hang), "stalled: no token for"),
    "no end": (Streaming(chunk(7)), "the stream says no end"),
    "aborted": (Streaming(chunk(7), chunk(finish_reason="abort")), "finish_reason abort after 1 tokens"),
    "shifted": (Streaming(chunk(7), chunk(8, **END) | {"token_ids": [9]}), "belongs to token 8"),
}


@pytest.mark.parametrize("name", LOST)
async def test_an_answer_of_which_tokens_were_handed_over_is_not_asked_for_again(name: str) -> None:
    stream, message = LOST[name]
    async with fleet_of(2) as (fleet, engines):
        for one in engines:
            one.stream = stream
        heard: list[Tokens] = []
        with pytest.raises((EngineUnavailable, AbortedCompletion), match=message):
            await fleet.generate([1], SAMPLING, live=LiveAnswer(heard.append))
        assert [some.ids for some in heard] == [[7]]
        assert sum(len(one.requests) for one in engines) == 1 and not fleet.counts.retries


async def test_an_answer_is_asked_for_again_while_none_of_its_tokens_was_handed_over() -> None:
    async with fleet_of(2) as (fleet, (first, second)):
        first.behaviour = first.fail(500)
        second.stream = Streaming(chunk(7), chunk(8, **END))
        heard: list[Tokens] = []
        live = LiveAnswer(heard.append)
        one = await fleet.generate([1], SAMPLING, prefer=first.url, live=live)
        assert one.token_ids.tolist() == [7, 8] and [some.ids for some in heard] == [[7]]
        assert len(first.requests) == 1 and one.tries == 2
