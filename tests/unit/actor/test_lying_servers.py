"""Slow, broken and lying engines: every rollout is retried or counted as failed, and the next one works."""

import asyncio
import json
import pickle
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pipelinerl.actor.messages import Assignment, Ending, FinishedRollout
from pipelinerl.actor.runner import RolloutRunner
from pipelinerl.config.roles import ActorConfig
from pipelinerl.engines.client import Deadlines
from pipelinerl.engines.fleet import Fleet
from pipelinerl.llm import TrainableLLM
from tests.support import tiny_model, toy_domain
from tests.support.fake_engine import FakeEngine, Odd

ANNOUNCED = 5
IDS = [7, 8, 9]
GOOD: dict[str, Any] = FakeEngine(lambda _: IDS, str(ANNOUNCED)).reply(IDS)


def body(**changes: Any) -> dict[str, Any]:
    """A good answer with changes to its only choice."""
    return {"request_id": "r", "choices": [GOOD["choices"][0] | changes]}


def entries(*pairs: tuple[int, Any]) -> dict[str, Any]:
    return {"content": [{"token_id": id_, "logprob": logprob} for id_, logprob in pairs]}


def spans(*triples: tuple[str, int, int]) -> dict[str, Any]:
    return {"weight_versions": [{"version": v, "start": a, "end": b} for v, a, b in triples]}


def says(content: Any, status: int = 200) -> Odd:
    async def reply(_: web.Request) -> web.StreamResponse:
        text = content if isinstance(content, str) else json.dumps(content)
        return web.Response(text=text, status=status)

    return reply


async def hangs_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def breaks_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.abort()
    return response


async def never_answers(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(600)
    return web.json_response(body())


NOT_A_NUMBER = (
    b'{"choices": [{"index": 0, "token_ids": [7], "finish_reason": "stop", "logprobs": {"content": '
)
RETRIED: dict[str, Odd] = {
    "hangs up": hangs_up,
    "breaks off in mid-answer": breaks_off,
    "500": 500,
    "502 in HTML": says("<html>Bad gateway</html>", 502),
    "503": 503,
    "not JSON": b"nonsense",
    "empty body": b"",
    "no choices": {"request_id": "r"},
    "empty choices": {"choices": []},
    "two choices": {"choices": GOOD["choices"] * 2},
    "a list": says([1, 2]),
    "other ids beside the log-probabilities": body(logprobs=entries((7, -1.0), (1, -1.0), (9, -1.0))),
    "too few log-probabilities": body(logprobs=entries((7, -1.0))),
    "no log-probabilities": body(logprobs=None),
    "NaN": NOT_A_NUMBER + b'[{"token_id": 7, "logprob": NaN}]}}]}',
    "infinity": NOT_A_NUMBER + b'[{"token_id": 7, "logprob": -1e999}]}}]}',
    "null for a number": body(logprobs=entries((7, None), (8, -1.0), (9, -1.0))),
    "the floor": body(logprobs=entries((7, -9999.0), (8, -1.0), (9, -1.0))),
    "aborted": body(finish_reason="abort"),
    "no tokens": body(token_ids=[], logprobs={"content": []}, weight_versions=[]),
    "no reason to finish": body(finish_reason=None),
    "versions that decrease": body(**spans(("6", 0, 1), ("5", 1, 3))),
    "versions with a gap": body(**spans(("5", 0, 1), ("6", 2, 3))),
    "versions of fewer tokens": body(**spans(("5", 0, 2))),
    "a version that is no number": body(**spans(("five", 0, 3))),
    "weights older than announced": body(**spans(("4", 0, 3))),
    "weights before the first update": body(**spans(("default", 0, 3))),
}
REFUSED: dict[str, tuple[Odd, str]] = {
    "400": (says({"error": {"message": "prompt too long"}}, 400), "HTTP 400: prompt too long"),
    "404": (says("no such route", 404), "HTTP 404: no such route"),
    "403": (says({"message": "token ids are off"}, 403), "HTTP 403: token ids are off"),
}


@pytest.fixture(scope="module")
def llm() -> TrainableLLM:
    tokenizer = tiny_model.build_tokenizer()
    return TrainableLLM(tokenizer=tokenizer, parameters={"max_tokens": 4}, collect_logprobs=True)


async def played(
    llm: TrainableLLM, *odd: Odd, first_deadline_s: float = 100.0
) -> tuple[list[FinishedRollout], FakeEngine, Fleet]:
    """Two rollouts one after the other, the first against the odd replies."""
    engine = FakeEngine(lambda _: IDS, str(ANNOUNCED))
    engine.misbehave.extend(odd)
    quick = Deadlines(connect_s=60, generate_s=100, health_s=60, health_interval_s=0.02)
    limits = [
        ActorConfig(
            rollout_deadline_s=deadline_s,
            max_rollout_retries=3,
            rollout_retry_initial_delay_s=0.001,
            rollout_retry_max_delay_s=0.01,
        )
        for deadline_s in (first_deadline_s, 100.0)
    ]
    cfg: Any = SimpleNamespace()
    with engine:
        url = engine.url
        async with (
            aiohttp.ClientSession() as session,
            Fleet([url], session, quick, announced_version=lambda: ANNOUNCED) as fleet,
        ):
            outcomes = []
            for number in range(2):
                runner = RolloutRunner(
                    toy_domain.play, cfg, llm, llm, fleet, session, limits[number], threads=1
                )
                problem = pickle.dumps({"number": number})
                assignment = Assignment(number, "0-000000", number, problem, url, True, None, ANNOUNCED)
                outcomes.append(await runner.run(assignment))
            return outcomes, engine, fleet


@pytest.mark.parametrize("name", RETRIED)
async def test_an_odd_answer_is_asked_for_again_and_never_becomes_data(llm: TrainableLLM, name: str) -> None:
    (first, second), engine, fleet = await played(llm, RETRIED[name])
    assert (first.ending, second.ending) == (Ending.DONE, Ending.DONE), first.reason
    assert engine.counts["requests"] == 3 and fleet.counts.retries.total() + first.retries == 1
    assert fleet.counts.failed == 1 and fleet.counts.completed == 2
    assert first.samples[0].weight_versions == [(ANNOUNCED, 0, 3)]


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_request_fails_its_rollout_with_the_servers_words(
    llm: TrainableLLM, name: str
) -> None:
    reply, words = REFUSED[name]
    (first, second), engine, fleet = await played(llm, reply)
    assert first.ending is Ending.FAILED and words in first.reason and first.samples == []
    assert second.ending is Ending.DONE
    assert engine.counts["requests"] == 2 and fleet.counts.refused == 1


async def test_an_engine_that_never_gives_a_right_answer_costs_the_rollout_not_the_run(
    llm: TrainableLLM,
) -> None:
    (first, second), _, fleet = await played(llm, *[RETRIED["not JSON"]] * 8 * 4)
    assert first.ending is Ending.FAILED and "invalid_answer" in first.reason and first.samples == []
    assert second.ending is Ending.DONE
    assert fleet.counts.completed == 1


async def test_an_engine_that_does_not_answer_costs_the_rollout_its_deadline_and_no_more(
    llm: TrainableLLM,
) -> None:
    (first, second), _, fleet = await played(llm, never_answers, first_deadline_s=0.5)
    assert first.ending is Ending.FAILED and "rollout_deadline_s=0.5" in first.reason
    assert second.ending is Ending.DONE
    assert fleet.counts.cancelled == 1 and fleet.counts.completed == 1
