"""Calls out of order, and pauses: what an engine refuses and what it does with running requests."""

import asyncio
import operator
import threading
from functools import partial

import numpy as np
import pytest

from pipelinerl.engines.client import AbortedCompletion, EngineClient, Generation, SamplingParams
from pipelinerl.weights.engine_state import EngineState
from pipelinerl.weights.engine_update import EngineUpdate, PublishDeadlines
from pipelinerl.weights.publisher import UpdateUnderWay
from pipelinerl.weights.version_update import WeightUpdateError
from tests.support.contract.engines import LENGTHS, RUNNING, TOKENS, Engine, Held
from tests.support.contract.models import prompt
from tests.support.engine_harness import full_logprobs

SHORT = SamplingParams(max_tokens=6, ignore_eos=True)


async def serves(engine: Engine, seed: int) -> None:
    """The engine generates, with these weights."""
    ids = prompt(12)
    one = await engine.client().generate(ids, SHORT)
    expected = full_logprobs(engine.model(seed), [*ids, *one.token_ids.tolist()])[len(ids) - 1 :]
    np.testing.assert_allclose(one.logprobs, expected, atol=1e-4)


async def test_an_update_without_a_pause_is_refused_before_anything_is_sent(engine: Engine) -> None:
    await engine.publish(70, 1, "recompute")
    update = EngineUpdate(EngineState(engine.url, 5), PublishDeadlines())
    update.start()
    assert "start after nothing, not after a granted pause" in str(update.error)
    update.update(b"{}", 5.0, lambda: True)
    update.finish(71)
    update.close()
    assert not update.finished
    await serves(engine, 1)


async def test_a_second_update_at_the_same_time_is_refused_before_anything_is_sent(engine: Engine) -> None:
    await engine.publish(72, 1, "recompute")
    staged, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        staged.set()
        go_on.wait(200)

    publisher = await engine.publisher("recompute", Held(engine.transport(), wait))  # type: ignore[arg-type]
    update = asyncio.create_task(asyncio.to_thread(publisher.publish, 73, engine.parameters(2)))
    await asyncio.to_thread(staged.wait, 200)
    with pytest.raises(UpdateUnderWay, match="version 74: the update to version 73 has not ended"):
        publisher.publish(74, engine.parameters(0))
    go_on.set()
    await update
    assert publisher.version == 73
    publisher.close()
    await serves(engine, 2)


async def test_an_update_after_a_failed_one_is_refused_before_anything_is_sent(engine: Engine) -> None:
    await engine.publish(75, 1, "recompute")
    publisher = await engine.publisher("recompute")
    publisher.mark_broken(engine.url)
    await engine.call("POST", "/pause?mode=keep&clear_cache=true")  # as a failed update leaves it
    with pytest.raises(WeightUpdateError, match=r"no engine can take part .*broken by a failed update"):
        await asyncio.to_thread(publisher.publish, 76, engine.parameters(2))
    await engine.call("POST", "/resume")
    publisher.close()
    await serves(engine, 1)


async def test_weights_outside_an_update_are_refused_and_generation_goes_on(engine: Engine) -> None:
    await engine.publish(77, 1, "recompute")
    transport = engine.transport()
    info = transport.stage(78, engine.parameters(2)).info
    error = await engine.refused("/update_weights", {"update_info": info})
    assert error.status == engine.facts.out_of_order and "update_weights" in error.body
    error = await engine.refused("/finish_weight_update", {"weight_version": "78"})
    assert error.status == engine.facts.out_of_order
    assert (await engine.refused("/pause?mode=never&clear_cache=false")).status == 400
    assert (await engine.call("GET", "/is_paused")) == {"is_paused": False}
    transport.close()
    await serves(engine, 1)


async def paused_midway(
    engine: Engine, client: EngineClient, how: str
) -> tuple[asyncio.Task[Generation], int]:
    """A request that a pause met while it ran, and its length."""
    for length in LENGTHS:
        before = await engine.metric(TOKENS)
        sampling = SamplingParams(max_tokens=length, ignore_eos=True)
        running = asyncio.create_task(client.generate([5, 6], sampling))
        await engine.until(TOKENS, partial(operator.le, before + 5))
        assert (await engine.call("POST", f"/pause?{how}"))["status"] == "paused"
        if await engine.metric(TOKENS) < before + length:
            return running, length
        await running
        await engine.call("POST", "/resume")
    raise AssertionError(f"requests of {LENGTHS} tokens ended before the engine was paused")


async def test_a_kept_request_stops_and_goes_on(engine: Engine) -> None:
    await engine.publish(80, 1, "recompute")
    running, length = await paused_midway(engine, engine.client(), "mode=keep&clear_cache=false")
    assert (await engine.call("GET", "/is_paused"))["is_paused"] is True
    queued = asyncio.create_task(engine.client().generate([7, 8], SHORT))
    await asyncio.sleep(0.1)
    stopped_at = await engine.metric(TOKENS)
    await asyncio.sleep(0.1)
    assert await engine.metric(TOKENS) == stopped_at
    assert not running.done() and not queued.done() and await engine.client().health()
    assert (await engine.call("POST", "/resume"))["status"] == "resumed"
    assert len((await running).token_ids) == length and len((await queued).token_ids) == 6


async def test_an_abort_ends_requests_and_the_client_says_that_they_are_no_data(engine: Engine) -> None:
    await engine.publish(81, 1, "recompute")
    client = engine.client()
    running, _ = await paused_midway(engine, client, "mode=abort&clear_cache=true")
    with pytest.raises(AbortedCompletion, match="finish_reason abort after"):
        await running
    assert client.counts.failed == 1
    await engine.call("POST", "/resume")
    await engine.until(RUNNING, lambda running: running == 0)
    await serves(engine, 1)


async def test_a_draining_pause_lets_requests_end(engine: Engine) -> None:
    await engine.publish(82, 1, "recompute")
    before, drained = await engine.metric(TOKENS), SamplingParams(max_tokens=120, ignore_eos=True)
    running = asyncio.create_task(engine.client().generate([5, 6], drained))
    await engine.until(TOKENS, lambda tokens: tokens >= before + 5)
    await engine.call("POST", "/pause?mode=wait&clear_cache=false")
    assert (await engine.call("GET", "/is_paused"))["is_paused"] is True
    assert len((await running).token_ids) == 120
    await engine.call("POST", "/resume")
    await serves(engine, 1)
