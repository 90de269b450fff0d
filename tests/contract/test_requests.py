"""What is refused and how it is said, requests that are given up, counters, the fleet before an engine."""

import asyncio
import operator
from functools import partial

import pytest

from pipelinerl.engines.answers import LiveAnswer, Tokens
from pipelinerl.engines.client import Deadlines, EngineRequestError, EngineUnavailable, SamplingParams
from pipelinerl.engines.fleet import Fleet
from tests.support.contract.engines import LENGTHS, RECORDED, RUNNING, TOKENS, Engine
from tests.support.contract.models import CONTEXT, VOCABULARY, prompt

SHORT = SamplingParams(max_tokens=4, ignore_eos=True)
BEHIND = r"has weights 92, announced are 93|was started after version 93"
COUNTED = {
    "vllm:prompt_tokens_total": 30,
    "vllm:generation_tokens_total": 4,
    "vllm:request_success_total": 1,
    "vllm:num_requests_running": 0,
    "vllm:num_requests_waiting": 0,
}


async def test_an_engine_says_what_it_serves(engine: Engine) -> None:
    client = engine.client()
    assert await client.health() and not await client.is_paused()
    await client.load_model_info()
    assert client.max_model_len == CONTEXT
    assert (await engine.call("GET", "/v1/models"))["data"][0]["id"] == "model"
    assert (await engine.call("GET", "/get_world_size"))["world_size"] == 1


async def test_what_can_never_be_served_is_refused_in_one_line_and_not_asked_again(engine: Engine) -> None:
    client = engine.client()
    refused = {
        "no tokens": ([], SHORT),
        "beyond the vocabulary": ([VOCABULARY + 5], SHORT),
        "too long": ([5] * CONTEXT, SHORT),
        "temperature": ([5], SamplingParams(max_tokens=1, temperature=-1.0)),
        "top_p": ([5], SamplingParams(max_tokens=1, top_p=0.0)),
        "penalty": ([5], SamplingParams(max_tokens=1, presence_penalty=3.0)),
    }
    for name, (ids, sampling) in refused.items():
        with pytest.raises(EngineRequestError) as error:
            await client.generate(ids, sampling)
        assert error.value.status == 400 and "\n" not in str(error.value), name
    assert (client.counts.sent, client.counts.refused) == (len(refused),) * 2
    await client.load_model_info()
    with pytest.raises(EngineRequestError, match=f"exceed max_model_len {CONTEXT}"):
        await client.generate([5] * CONTEXT, SHORT)
    assert client.counts.sent == len(refused), "known before it is sent"
    other = {"token_ids": [5], "sampling_params": {"max_tokens": 1}, "model": "gpt"}
    assert (await engine.refused("/inference/v1/generate", other)).status == 404


async def test_closing_the_connection_aborts_the_request(engine: Engine) -> None:
    await engine.publish(90, 1, "recompute")
    client = engine.client()
    for length in LENGTHS:
        before = await engine.metric(TOKENS)
        running = asyncio.create_task(
            client.generate([5, 6], SamplingParams(max_tokens=length, ignore_eos=True))
        )
        await engine.until(TOKENS, partial(operator.le, before + 3))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await engine.until(RUNNING, lambda running: running == 0)
        if client.counts.cancelled:
            break
    assert client.counts.cancelled == 1 and await engine.metric(TOKENS) < before + length


async def test_a_stream_brings_the_answer_as_it_is_sampled(
    engine: Engine, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["engine"] in RECORDED:
        pytest.skip("streams are not on the tapes")
    await engine.publish(97, 1, "recompute")
    sampling = SamplingParams(max_tokens=12, seed=4, ignore_eos=True)
    heard: list[Tokens] = []
    whole = await engine.client(announced=96).generate(prompt(9), sampling)
    one = await engine.client(announced=96).generate(prompt(9), sampling, live=LiveAnswer(heard.append))
    assert one.token_ids.tolist() == whole.token_ids.tolist()
    assert one.logprobs.tolist() == pytest.approx(whole.logprobs.tolist(), abs=1e-5)
    assert (one.versions, one.exact_versions) == (whole.versions, whole.exact_versions)
    assert (one.finish_reason, one.stop_reason) == (whole.finish_reason, whole.stop_reason)
    ids = [token for some in heard for token in some.ids]
    assert len(heard) > 1 and ids == whole.token_ids.tolist()[: len(ids)]


async def test_counters_say_what_was_done(engine: Engine) -> None:
    await engine.publish(91, 1, "recompute")
    await engine.until(RUNNING, lambda running: running == 0)
    before = await engine.client().metrics()
    await engine.client().generate(prompt(30), SHORT)
    await engine.until(TOKENS, lambda tokens: tokens >= before[TOKENS] + 4)
    await engine.until(RUNNING, lambda running: running == 0)
    after = await engine.client().metrics()
    for name, grown in COUNTED.items():
        assert after[name] - before[name] == grown, name
    assert {"vllm:kv_cache_usage_perc", "vllm:num_preemptions_total"} <= after.keys()


async def test_a_fleet_admits_an_engine_with_the_announced_weights_only(engine: Engine) -> None:
    await engine.publish(92, 1, "recompute")
    once = Deadlines(health_interval_s=3600.0, health_s=30.0)
    async with Fleet([engine.url], engine.session, once, announced_version=lambda: 92) as fleet:
        one = await fleet.generate(prompt(9), SHORT)
        assert one.versions == [(92, 0, 4)] and one.tries == 1 and fleet.in_rotation == [engine.url]
    now = Deadlines(health_interval_s=3600.0, health_s=30.0, generate_s=0.2)
    later = Fleet([engine.url], engine.session, now, announced_version=lambda: 93, announced_at=lambda: 0.0)
    async with later as fleet:
        with pytest.raises(EngineUnavailable, match=BEHIND):
            await fleet.generate(prompt(9), SHORT)


async def test_an_answer_says_what_sampled_it_or_what_was_announced(engine: Engine) -> None:
    await engine.publish(94, 1, "recompute")
    one = await engine.client(announced=93).generate(prompt(9), SHORT)
    assert one.versions == [(engine.facts.said(sampled=94, announced=93), 0, 4)]
    assert one.exact_versions == engine.facts.reports_versions


async def test_tokens_older_than_what_was_announced_are_no_answer(engine: Engine) -> None:
    engine.facts.needs_versions()
    await engine.publish(95, 1, "recompute")
    with pytest.raises(EngineUnavailable, match="tokens of version 95, but 96 was announced"):
        await engine.client(announced=96).generate(prompt(9), SHORT)
