"""Rollouts whose penalty comes over HTTP: what a scoring service may answer, and what fails the rollout."""

import json
from functools import partial

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from domains.privacy_hopqa.errors import PrivacyScoreFailure, TransportFailure
from domains.privacy_hopqa.privacy import ScoreRequest
from domains.privacy_hopqa.scorer.app import ScoringService, build_app
from domains.privacy_hopqa.scorer.classifiers import RulesClassifier
from domains.privacy_hopqa.scorer.protocol import MAX_EXAMPLES, parse_request
from domains.privacy_hopqa.scoring import EmbeddedScorer, ServiceScorer
from domains.privacy_hopqa.transport import JsonClient, Retries
from tests.support.agent_harness import TWO_HOPS, chain_of, hop

FACTS = TWO_HOPS.private_questions("chain")
NO_WAIT = Retries(backoff_s=(0.0, 0.0, 0.0), jitter=0.0)


def requests(count=2):
    return [ScoreRequest(f"log{n}", ("audit 15%", f"query {n}")) for n in range(count)]


class Stub:
    """A scoring service that answers what it is told to; keeps what it was asked."""

    def __init__(self):
        self.answers = []
        self.bodies = []

    async def score(self, request):
        self.bodies.append(await request.read())
        answer = self.answers[min(len(self.bodies), len(self.answers)) - 1]
        return answer(self.bodies[-1])


def rows(body, **changes):
    found = [{"id": e["id"], "prob_yes": 0.5} | changes for e in json.loads(body)["examples"]]
    return web.json_response({"scores": found, "scorer": "stub", "version": "0"})


def raw(body, text="", status=200):
    return web.Response(text=text, status=status, content_type="application/json")


@pytest.fixture
async def stub():
    found = Stub()
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/score", found.score)
    server = TestServer(app)
    await server.start_server()
    async with aiohttp.ClientSession() as session:
        found.scorer = ServiceScorer(JsonClient(str(server.make_url("")), session, 5.0, NO_WAIT))
        yield found
    await server.close()


async def test_the_request_is_what_the_service_takes(stub):
    stub.answers = [rows]
    scores = await stub.scorer.score(TWO_HOPS, FACTS, requests())
    assert scores == {"log0": 0.5, "log1": 0.5}
    (body,) = stub.bodies
    first = json.loads(body)["examples"][0]
    assert first == {
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
    assert [e.id for e in parse_request(body)] == ["log0", "log1"]


async def test_more_logs_than_a_request_may_hold_go_in_several(stub):
    stub.answers = [rows]
    scores = await stub.scorer.score(TWO_HOPS, FACTS, requests(MAX_EXAMPLES + 3))
    assert len(scores) == MAX_EXAMPLES + 3
    assert [len(json.loads(body)["examples"]) for body in stub.bodies] == [MAX_EXAMPLES, 3]


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
        partial(raw, text='{"scores":[{"id":"log0","prob_yes":NaN},{"id":"log1","prob_yes":0}]}'),
        partial(raw, text='{"scores":[{"id":"log0","prob_yes":1e999},{"id":"log1","prob_yes":0}]}'),
        partial(
            raw, text='{"scores":[{"id":"log0","prob_yes":1' + "0" * 400 + '},{"id":"log1","prob_yes":0}]}'
        ),
        partial(raw, text='{"scores":[{"id":"log0","prob_yes":0}]}'),
        partial(raw, text='{"scores":{}}'),
        partial(raw, text='{"scores":[1,2]}'),
        partial(raw, text="[]"),
        partial(raw, text="not json"),
        partial(raw, text="[" * 100_000),
        partial(raw, text="{}", status=400),
        partial(raw, text="{}", status=413),
    ],
)
async def test_an_answer_that_is_no_score_per_log_is_a_failure_and_not_repeated(stub, answer):
    stub.answers = [answer]
    with pytest.raises(PrivacyScoreFailure):
        await stub.scorer.score(TWO_HOPS, FACTS, requests())
    assert len(stub.bodies) == 1


async def test_a_refusal_that_quotes_the_request_is_told_by_its_status(stub):
    """Reasons of failures stand in logs and books, where no query and no private answer may stand."""
    stub.answers = [lambda body: web.Response(text=f"invalid input: {body.decode()}", status=422)]
    with pytest.raises(PrivacyScoreFailure, match=r"/score answered 422$"):
        await stub.scorer.score(TWO_HOPS, FACTS, requests())


async def test_passing_trouble_is_retried_and_lasting_trouble_fails_the_rollout(stub):
    stub.answers = [partial(raw, status=500), partial(raw, status=429), partial(raw, status=503), rows]
    assert await stub.scorer.score(TWO_HOPS, FACTS, requests(1)) == {"log0": 0.5}
    stub.answers, stub.bodies = [partial(raw, status=500)], []
    with pytest.raises(TransportFailure, match="answered 500"):
        await stub.scorer.score(TWO_HOPS, FACTS, requests(1))
    assert len(stub.bodies) == 4


async def test_the_service_and_the_scorer_in_process_agree():
    server = TestServer(build_app(ScoringService(RulesClassifier())))
    await server.start_server()
    logs = [
        ScoreRequest("a", ("15% of stores passed the audit",)),
        ScoreRequest("b", ("Harlow Foods", "share 15%")),
        ScoreRequest("c", ("weather",)),
    ]
    chain = chain_of(
        hop(1, "What share of Harlow Foods stores passed the audit?", "15%", "local/DR90001/a.md")
    )
    facts = chain.private_questions("chain")
    async with aiohttp.ClientSession() as session:
        served = await ServiceScorer(JsonClient(str(server.make_url("")), session, 5.0)).score(
            chain, facts, logs
        )
    await server.close()
    assert served == await EmbeddedScorer().score(chain, facts, logs)
    assert served["a"] > served["b"] > served["c"] == 0.0
