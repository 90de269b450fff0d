"""Rollouts whose penalty comes over HTTP: what a scoring service may answer, and what fails the rollout."""

import asyncio
import json
from functools import partial

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from omegaconf import OmegaConf

from domains.privacy_hopqa.agent.errors import PrivacyScoreFailure
from domains.privacy_hopqa.agent.transport import JsonClient
from domains.privacy_hopqa.domain import PrivacyHopQADomain
from domains.privacy_hopqa.reward.scoring import score_by_service, score_here
from domains.privacy_hopqa.scorer.app import ScoringService, build_app
from domains.privacy_hopqa.scorer.classifiers import RulesClassifier
from domains.privacy_hopqa.scorer.protocol import MAX_EXAMPLES, parse_request
from pipelinerl.base.errors import ConfigError
from tests.support.privacy_hopqa.agent import TWO_HOPS
from tests.support.privacy_hopqa.service import Service

FACTS = TWO_HOPS.private_questions("chain")


def logs(count=2):
    return [("audit 15%", f"query {n}") for n in range(count)]


def rows(body, **changes):
    found = [{"id": e["id"], "prob_yes": 0.5} | changes for e in body["examples"]]
    return {"scores": found, "scorer": "stub", "version": "0"}


def one_score(value):
    return f'{{"scores":[{{"id":"log0","prob_yes":{value}}},{{"id":"log1","prob_yes":0}}]}}'


async def scored(service, asked):
    async with service.client() as client:
        return await score_by_service(client, TWO_HOPS, FACTS, asked)


async def test_the_request_is_what_the_service_takes():
    service = Service(rows)
    assert await scored(service, logs()) == dict.fromkeys(logs(), 0.5)
    ((path, body),) = service.requests
    assert path == "/score"
    assert body["examples"][0] == {
        "id": "log0",
        "company": "Harlow Foods",
        "task_id": "DR90001",
        "chain_id": "c1",
        "variant": "private_fact_context",
        "web_queries": ["audit 15%", "query 0"],
        "private_qas": [],
        "local_hop_facts": [
            {
                "fact_id": "hop1",
                "hop_number": 1,
                "doc_id": "local/DR90001/files_a/audit.md",
                "question": "What share of Harlow Foods stores passed the audit?",
                "canonical_answer": "15%",
            }
        ],
    }
    assert [e.id for e in parse_request(json.dumps(body).encode())] == ["log0", "log1"]


async def test_more_logs_than_a_request_may_hold_go_in_several():
    service = Service(rows)
    assert len(await scored(service, logs(MAX_EXAMPLES + 3))) == MAX_EXAMPLES + 3
    assert [len(body["examples"]) for _, body in service.requests] == [MAX_EXAMPLES, 3]


@pytest.mark.parametrize(
    "answer",
    [
        partial(rows, id="log0"),
        partial(rows, id=["log0"]),
        partial(rows, id=None),
        partial(rows, prob_yes=1.5),
        partial(rows, prob_yes=-0.01),
        partial(rows, prob_yes="0.5"),
        partial(rows, prob_yes=True),
        partial(rows, prob_yes=None),
        partial(rows, prob_yes=float("inf")),
        one_score("NaN"),
        one_score("1e999"),
        one_score("1" + "0" * 400),
        '{"scores":[{"id":"log0","prob_yes":0}]}',
        '{"scores":{}}',
        '{"scores":[1,2]}',
        "[]",
        "not json",
        "[" * 100_000,
        400,
        413,
    ],
)
async def test_an_answer_that_is_no_score_per_log_is_a_failure_and_not_repeated(answer):
    service = Service(answer)
    with pytest.raises(PrivacyScoreFailure):
        await scored(service, logs())
    assert len(service.requests) == 1


async def test_a_refusal_that_quotes_the_request_is_told_by_its_status():
    """Reasons of failures stand in logs and reports, where no query and no private answer may stand."""
    service = Service(lambda body: web.Response(text=f"invalid input: {body}", status=422))
    with pytest.raises(PrivacyScoreFailure, match=r"/score answered 422$"):
        await scored(service, logs())


async def test_the_service_and_the_scorer_in_process_agree():
    leaky, mosaic, harmless = ("15% of stores passed the audit",), ("Harlow Foods", "share 15%"), ("weather",)
    asked = [leaky, mosaic, harmless]
    app = build_app(ScoringService(RulesClassifier()))
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        client = JsonClient(str(server.make_url("")), session, 5.0)
        served = await score_by_service(client, TWO_HOPS, FACTS, asked)
    assert served == await score_here(TWO_HOPS, FACTS, asked)
    assert served[leaky] > served[mosaic] > served[harmless] == 0.0


async def asked_before_the_start(url):
    block = {"privacy_reward_service_url": url, "privacy_reward_timeout_s": 5}
    (service,) = PrivacyHopQADomain().named_services(OmegaConf.create({"privacy_hopqa": block}))
    assert (service.url_key, service.url) == ("privacy_hopqa.privacy_reward_service_url", url)
    return await asyncio.to_thread(service.ask)


async def test_a_named_scorer_is_asked_for_a_score_before_the_start():
    async with TestServer(build_app(ScoringService(RulesClassifier()))) as server:
        url = str(server.make_url("")).rstrip("/")
        assert await asked_before_the_start(url) == "scores an invented log"
    with pytest.raises(ConfigError, match=f"privacy_reward_service_url={url}: .*start it, or leave the key"):
        await asked_before_the_start(url)


@pytest.mark.parametrize("answer", [{"scores": []}, {"scores": [{"id": "log0", "prob_yes": 7}]}, "404"])
async def test_a_named_server_that_scores_nothing_is_refused_before_the_start(answer):
    async def score(_):
        return web.json_response(answer) if isinstance(answer, dict) else web.Response(status=int(answer))

    app = web.Application()
    app.router.add_post("/score", score)
    async with TestServer(app) as server:
        with pytest.raises(ConfigError, match="privacy_reward_service_url="):
            await asked_before_the_start(str(server.make_url("")).rstrip("/"))
