"""The log of outbound queries, the client that must write it first, and what is asked before any search."""

import json
import time
from contextlib import asynccontextmanager
from dataclasses import asdict, replace

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from domains.privacy_hopqa.agent.audit import Audit, AuditLog, RolloutIdentity
from domains.privacy_hopqa.agent.errors import AuditFailure, SearchActionError, TransportFailure
from domains.privacy_hopqa.agent.interfaces import Search
from domains.privacy_hopqa.agent.search_service import HttpSearcher, check_fingerprint, helper_headers
from domains.privacy_hopqa.agent.transport import JsonClient, RequestRefused, Retries
from domains.privacy_hopqa.leakage.log import audit_files, read_audit_log
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from retrieval_server.app import RetrievalService, build_app
from retrieval_server.corpus import WebDocument
from retrieval_server.store import Store
from tests.support.privacy_hopqa.service import FAST, Service

IDENTITY = RolloutIdentity("run", "g/0#1", "g", True, "train", "DR90001", "c1", 3)
SETTINGS = PrivacyHopQASettings(local_search_threshold=0.5)
WEB_HIT = {"docid": "web/1", "raw_docid": "1", "url": "u", "text": "# T\n\nbody", "score": 2.0}
LOCAL_HIT = {
    "doc_id": "local/DR90001/f/x.md",
    "content": "text",
    "similarity_score": 1.5,
    "metadata": {"title": "X", "file_path": "DR90001/files/f/x.md"},
}


def search(source="web", query="cold chain"):
    return Search(source, query, 5, "DR90001", 2, 3, "c4a1")


@asynccontextmanager
async def searcher_on(service, path, required=True, **changes):
    audit = Audit(AuditLog(path, required), IDENTITY)
    async with service.client() as client:
        yield HttpSearcher(client, audit, SETTINGS.model_copy(update=changes)), audit


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_request_is_logged_before_it_leaves_and_completed_after(tmp_path):
    path = tmp_path / "audit" / "1.jsonl"
    service = Service({"hits": [WEB_HIT]})
    async with searcher_on(service, path) as (searcher, _):
        (hit,) = await searcher.search(search())
    assert (hit.document.doc_id, hit.document.title, hit.score) == ("web/1", "T", 2.0)
    assert service.requests == [
        ("/browsecomp/search", {"query": "cold chain", "k": 5, "task_id": "DR90001", "max_chars": 0})
    ]
    request, completion = lines(path)
    asked = {"hop_number": 2, "iteration": 3, "action_id": "c4a1", "query": "cold chain", "k": 5}
    assert (asdict(IDENTITY) | asked).items() <= request.items()
    assert len(request["query_sha256"]) == 64
    assert completion["request_id"] == request["request_id"]
    assert (completion["status"], completion["n_hits"]) == ("ok", 1)
    assert "body" not in path.read_text()


async def test_every_attempt_is_logged_and_the_evaluation_counts_them(tmp_path):
    service = Service(503, 429, {"hits": [WEB_HIT]})
    path = tmp_path / "audit" / "1.jsonl"
    async with searcher_on(service, path) as (searcher, audit):
        audit.announce()
        await searcher.search(search())
        await searcher.search(search(query="another"))
        audit.end()
    log = read_audit_log(audit_files(tmp_path))
    assert log.requests == len(service.requests) == 4
    (rollout,) = log.rollouts
    assert rollout.queries == ["cold chain", "another"]
    assert log.unanswered == 0


def test_a_try_without_an_end_is_told_from_a_rollout(tmp_path):
    log = AuditLog(tmp_path / "audit" / "1.jsonl")
    for name in ("g/0#a", "g/0#b", "g/0#c"):
        audit = Audit(log, replace(IDENTITY, rollout_id=name))
        audit.announce()
        if name != "g/0#a":
            with audit.attempt(search()):
                pass
    audit.end()
    found = read_audit_log(audit_files(tmp_path))
    assert [rollout.rollout_id for rollout in found.rollouts] == ["g/0#c"]
    assert [(r.rollout_id, r.queries) for r in found.unfinished] == [("g/0#a", []), ("g/0#b", ["cold chain"])]
    assert found.requests == 2


async def test_an_unwritable_log_blocks_web_requests_and_private_ones_are_not_in_it(tmp_path):
    (tmp_path / "audit").write_text("a file where a folder is needed")
    service = Service({"hits": [LOCAL_HIT]})
    async with searcher_on(service, tmp_path / "audit" / "1.jsonl") as (searcher, _):
        with pytest.raises(AuditFailure, match="cannot be written"):
            await searcher.search(search())
        (hit,) = await searcher.search(search("local"))
    assert hit.document.title == "X"
    asked = {"task_id": "DR90001", "query": "cold chain", "k": 5, "threshold": 0.5}
    assert service.requests == [("/local/search", asked)]


async def test_without_audit_required_the_request_leaves_with_one_warning(tmp_path, caplog):
    (tmp_path / "audit").write_text("")
    service = Service({"hits": []})
    async with searcher_on(service, tmp_path / "audit" / "1.jsonl", required=False) as (searcher, _):
        await searcher.search(search())
    assert len(service.requests) == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize("source", ["web", "local"])
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_what_may_pass_is_retried_three_times_and_then_fails_the_rollout(tmp_path, source, status):
    service = Service(status)
    async with searcher_on(service, tmp_path / "1.jsonl") as (searcher, _):
        with pytest.raises(TransportFailure, match=f"answered {status}"):
            await searcher.search(search(source))
    assert len(service.requests) == 4


@pytest.mark.parametrize("source", ["web", "local"])
@pytest.mark.parametrize(
    "answer",
    [
        400,
        404,
        413,
        "no json",
        {"hits": "x"},
        {},
        {"hits": [{}]},
        {"hits": [{"docid": "web/1", "text": "t"}]},
        {"hits": [WEB_HIT | LOCAL_HIT | {"score": float("nan"), "similarity_score": 10**400}]},
        {"hits": [WEB_HIT | LOCAL_HIT | {"score": 10**400, "similarity_score": float("inf")}]},
    ],
)
async def test_a_refusal_or_a_malformed_hit_fails_this_search_at_once(tmp_path, source, answer):
    service = Service(answer)
    async with searcher_on(service, tmp_path / "1.jsonl") as (searcher, _):
        with pytest.raises(SearchActionError):
            await searcher.search(search(source))
    assert len(service.requests) == 1


@pytest.mark.parametrize("source", ["web", "local"])
async def test_half_an_emoji_in_a_hit_of_any_service_is_replaced(tmp_path, source):
    half = "\ud83d cold chain"
    hit = {"docid": half, "text": half, "url": half, "score": 1, "doc_id": half, "content": half}
    hit |= {"similarity_score": 1, "metadata": {"title": half, "file_path": half}}
    async with searcher_on(Service({"hits": [hit]}), tmp_path / "1.jsonl") as (searcher, _):
        (found,) = await searcher.search(search(source))
    shown = found.document.doc_id.removeprefix("web/"), found.document.title, found.document.locator
    assert {*shown, found.document.text} == {"\ufffd cold chain"}


@pytest.mark.parametrize("status", [302, 307, 308])
async def test_a_redirect_is_refused_so_that_queries_go_nowhere_else(tmp_path, status):
    service = Service(web.Response(status=status, headers={"Location": "/elsewhere"}), {"hits": [WEB_HIT]})
    async with searcher_on(service, tmp_path / "1.jsonl") as (searcher, _):
        with pytest.raises(SearchActionError, match=f"answered {status}"):
            await searcher.search(search())
    assert [path for path, _ in service.requests] == ["/browsecomp/search"]


async def test_an_outage_is_survived_as_long_as_the_key_says(tmp_path):
    retries = Retries(backoff_s=(0.01,), jitter=0.0, outage_s=200.0)
    service = Service(*[503] * 9, {"ok": 1}, 503)
    async with service.client() as client:
        client.retries = retries
        assert await client.post("/local/search", {}) == {"ok": 1}
        client.retries = replace(retries, outage_s=0.3)
        start = time.monotonic()
        with pytest.raises(TransportFailure, match="answered 503"):
            await client.post("/local/search", {})
    assert 0.3 <= time.monotonic() - start < 100


async def test_a_search_asks_for_the_characters_of_its_settings(tmp_path):
    service = Service({"hits": [LOCAL_HIT | WEB_HIT]})
    bounds = {"retrieval_source_chars": 900, "retrieval_answer_chars": 3000}
    async with searcher_on(service, tmp_path / "1.jsonl", **bounds) as (searcher, _):
        await searcher.search(search("local"))
        await searcher.search(search())
    asked = [(body["max_chars"], body["max_answer_chars"]) for _, body in service.requests]
    assert asked == [(900, 3000)] * 2


async def test_no_connection_fails_the_rollout(tmp_path):
    async with aiohttp.ClientSession() as session:
        client = JsonClient("http://127.0.0.1:9", session, 5.0, FAST)
        with pytest.raises(TransportFailure, match="4 attempts"):
            await client.post("/score", {})


@pytest.mark.parametrize(
    ("attempt", "asked", "wait"),
    [(0, None, 0.5), (1, None, 1.0), (2, None, 2.0), (0, 7, 7.0), (0, 600, 30.0)],
)
def test_waits_between_retries(attempt, asked, wait):
    assert Retries(jitter=0.0).wait_s(attempt, asked) == wait


TOKEN = "0123456789abcdef"


async def test_the_token_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a search is refused and the world that is served is not told."""
    store = Store({}, [WebDocument("7", "u", "coverage of stores")])
    app = build_app(RetrievalService(store, "served", token=TOKEN))
    async with TestServer(app) as server, aiohttp.ClientSession() as session:

        def client() -> JsonClient:
            return JsonClient(str(server.make_url("")), session, 30, headers=helper_headers())

        monkeypatch.delenv("RETRIEVAL_TOKEN", raising=False)
        with pytest.raises(RequestRefused, match="401"):
            await client().post("/browsecomp/search", {"query": "coverage"})
        with pytest.raises(ValueError, match="asks for a token; set RETRIEVAL_TOKEN"):
            await check_fingerprint(client(), "another")
        monkeypatch.setenv("RETRIEVAL_TOKEN", TOKEN)
        assert await client().post("/browsecomp/search", {"query": "coverage"})
        with pytest.raises(ValueError, match="serves world served, the chains belong to another"):
            await check_fingerprint(client(), "another")


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_token_is_not_tried_again(status: int) -> None:
    service = Service(status)
    async with service.client() as client:
        with pytest.raises(
            ValueError, match=f"answered {status}; set RETRIEVAL_TOKEN to the server's own token"
        ):
            await check_fingerprint(client, "f")
    assert len(service.requests) == 1


async def test_a_service_that_is_not_ready_is_asked_again() -> None:
    loading = web.json_response({"status": "loading"}, status=503)
    service = Service(loading, 404, {"status": "ok", "fingerprint": "f"})
    async with service.client() as client:
        await check_fingerprint(client, "f")
    assert [path for path, _ in service.requests] == ["/health"] * 3
