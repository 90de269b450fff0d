"""The HTTP server: answers, errors, limits, queueing, counters."""

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from retrieval_server import http_errors
from retrieval_server.app import RetrievalService, build_app
from retrieval_server.limits import MAX_BODY_BYTES, RequestError, SearchQueue
from retrieval_server.store import Store
from tests.support.one_line import check_one_line

WEB = "/browsecomp/search"
LOCAL = "/local/search"


@asynccontextmanager
async def serving(service: RetrievalService) -> AsyncIterator[TestClient]:
    async with TestClient(TestServer(build_app(service))) as client:
        yield client


@pytest.fixture
async def client(data: Path) -> AsyncIterator[TestClient]:
    store = Store.load(data / "tasks", data / "web.jsonl")
    async with serving(RetrievalService(store, fingerprint="f1")) as opened:
        yield opened


async def post(client: TestClient, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client.post(path, data=data) as response:
        return response.status, await response.json()


async def test_searches_answer_as_the_store_does(client: TestClient, data: Path) -> None:
    store = Store.load(data / "tasks", data / "web.jsonl")
    status, found = await post(client, LOCAL, {"task_id": "DR90001", "query": "cold", "k": 3, "extra": 1})
    assert (status, found) == (200, {"hits": store.search_local("DR90001", "cold", 3)})
    status, found = await post(client, WEB, {"query": "cold", "max_chars": 0, "task_id": "DR90001"})
    assert (status, found) == (200, {"hits": store.search_web("cold", 5, 0)})
    status, found = await post(client, LOCAL, {"task_id": "DR90001", "query": "cold", "threshold": 99})
    assert (status, found) == (200, {"hits": []})


@pytest.mark.parametrize(("path", "field"), [(LOCAL, "content"), (WEB, "text")])
async def test_an_answer_tells_what_was_cut(client: TestClient, path: str, field: str) -> None:
    body = {"query": "cold", "task_id": "DR90001"}
    for bound in ({"max_chars": 7}, {"max_chars": 0, "max_answer_chars": 14}):
        _, found = await post(client, path, body | bound)
        assert all(hit["truncated"] and len(hit[field]) < hit["text_chars"] for hit in found["hits"])
        assert 0 < sum(len(hit[field]) for hit in found["hits"]) <= 14


async def test_a_task_id_does_not_change_web_results(client: TestClient) -> None:
    plain = await post(client, WEB, {"query": "cold shared"})
    assert await post(client, WEB, {"query": "cold shared", "task_id": "DR90001"}) == plain
    assert await post(client, WEB, {"query": "cold shared", "task_id": "../../etc"}) == plain


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "said"),
    [
        (WEB, b"", 400, "bad_json", "the body"),
        (WEB, b"{", 400, "bad_json", "the body"),
        (WEB, b"[" * 100_000, 400, "bad_json", "the body"),
        (WEB, b'{"query":"a","k":' + b"9" * 5000 + b"}", 400, "bad_json", "the body"),
        (WEB, b"\xff", 400, "bad_json", "the body"),
        (WEB, [1], 400, "wrong_type", "a list"),
        (WEB, {}, 400, "missing", "query is missing"),
        (WEB, {"query": None}, 400, "wrong_type", "query"),
        (WEB, {"query": 3}, 400, "wrong_type", "query is a int"),
        (WEB, {"query": ""}, 400, "out_of_range", "query has 0 characters"),
        (WEB, {"query": "x" * 2001}, 400, "out_of_range", "2001"),
        (WEB, {"query": "x", "k": 0}, 400, "out_of_range", "k=0"),
        (WEB, {"query": "x", "k": 51}, 400, "out_of_range", "k=51"),
        (WEB, {"query": "x", "k": True}, 400, "wrong_type", "k is a bool"),
        (WEB, {"query": "x", "k": 2.0}, 400, "wrong_type", "k is a float"),
        (WEB, {"query": "x", "max_chars": -1}, 400, "out_of_range", "max_chars=-1"),
        (WEB, {"query": "x", "max_chars": "1"}, 400, "wrong_type", "max_chars is a str"),
        (WEB, {"query": "x", "task_id": 5}, 400, "wrong_type", "task_id is a int"),
        (LOCAL, {"query": "x", "task_id": "DR90001", "max_chars": -1}, 400, "out_of_range", "max_chars=-1"),
        (WEB, {"query": "x", "max_answer_chars": "1"}, 400, "wrong_type", "max_answer_chars is a str"),
        (LOCAL, {"query": "x"}, 400, "missing", "task_id is missing"),
        (LOCAL, {"query": "x", "task_id": "../DR90001"}, 400, "out_of_range", "task_id"),
        (LOCAL, {"query": "x", "task_id": "DR90001/files"}, 400, "out_of_range", "task_id"),
        (LOCAL, {"query": "x", "task_id": "DR90001\n"}, 400, "out_of_range", "task_id"),
        (LOCAL, {"query": "x", "task_id": "DR90009"}, 404, "unknown_task", "'DR90009'"),
        (
            LOCAL,
            {"query": "x", "task_id": "DR90001", "threshold": "high"},
            400,
            "wrong_type",
            "threshold is a str",
        ),
        (LOCAL, b'{"query":"x","task_id":"DR90001","threshold":NaN}', 400, "out_of_range", "threshold"),
        (LOCAL, {"query": "x", "task_id": "DR90001", "threshold": 10**400}, 400, "out_of_range", "threshold"),
        (
            "/known",
            {"task": ["DR90001"]},
            400,
            "unknown",
            "'task' is unknown; send some of tasks, pages, texts",
        ),
        ("/known", {"tasks": "DR90001"}, 400, "wrong_type", "tasks is a str; send a list of strings"),
        ("/known", {"texts": ["web/1"]}, 400, "wrong_type", "texts is a list; send an object of strings"),
        ("/known", {"texts": {"web/1": 7}}, 400, "wrong_type", "texts is a dict; send an object of strings"),
        ("/known", {"pages": [7]}, 400, "wrong_type", "pages is a list; send a list of strings"),
        ("/nothing", {}, 404, "unknown_path", "no such path"),
        ("/health", {}, 405, "method_not_allowed", "POST is not allowed"),
        (WEB, b" " * (MAX_BODY_BYTES + 1), 413, "too_large", str(MAX_BODY_BYTES)),
        (WEB, b" " * MAX_BODY_BYTES, 400, "bad_json", "the body"),
    ],
)
async def test_errors(client: TestClient, path: str, body: Any, status: int, code: str, said: str) -> None:
    found, answer = await post(client, path, body)
    assert (found, answer["error"]["code"]) == (status, code)
    check_one_line(answer["error"]["message"], said)


async def test_what_is_not_served_is_told(client: TestClient) -> None:
    asked = {"tasks": ["DR90001", "../x"], "pages": ["web/10", "9", "7", "web/1"]}  # 7 is without text
    missing = {"documents": 2, "missing_tasks": ["../x"], "missing_pages": ["7", "web/1"]}
    assert await post(client, "/known", asked) == (200, missing | {"other_texts": []})
    assert await post(client, "/known", {}) == (
        200,
        {"documents": 0, "missing_tasks": [], "missing_pages": [], "other_texts": []},
    )
    texts = {
        id_: hashlib.sha256(b"no text of them").hexdigest() for id_ in ("web/10", "web/1", "x", "local/")
    }
    assert (await post(client, "/known", {"texts": texts}))[1]["other_texts"] == [*texts]
    _, found = await post(client, WEB, {"query": "cold", "max_chars": 0})
    _, private = await post(client, LOCAL, {"task_id": "DR90001", "query": "cold"})
    served = {hit["docid"]: f"{hit['url']}\n{hit['text']}" for hit in found["hits"]}
    served |= {hit["doc_id"]: hit["content"] for hit in private["hits"]}
    texts = {id_: hashlib.sha256(text.encode()).hexdigest() for id_, text in served.items()}
    assert len(texts) > 2 and (await post(client, "/known", {"texts": texts}))[1]["other_texts"] == []


async def test_a_large_body_of_unknown_length_is_refused(client: TestClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 10_000

    async with client.post(WEB, data=chunks()) as response:
        assert response.status == 413


async def test_wrong_method_names_the_right_one(client: TestClient) -> None:
    async with client.get(WEB) as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")


async def test_health_counts_requests_by_route_and_status(client: TestClient) -> None:
    await post(client, WEB, {"query": "cold"})
    await post(client, WEB, {})
    await post(client, LOCAL, {"query": "x", "task_id": "DR90009"})
    async with client.get("/health") as response:
        health = await response.json()
    assert health["status"] == "ok"
    assert (health["fingerprint"], health["web_docs"], health["tasks"]) == ("f1", 3, 2)
    assert health["requests"] == {
        LOCAL: {"received": 1, "by_status": {"404": 1}},
        WEB: {"received": 2, "by_status": {"200": 1, "400": 1}},
    }


async def test_health_names_the_back_end_and_each_process(client: TestClient) -> None:
    async with client.get("/health") as response:
        health = await response.json()
    assert health["index"] == "rank_bm25"
    (worker,) = health["workers"]
    assert (worker["pid"], worker["status"], worker["starts"]) == (os.getpid(), "ok", 1)


async def test_a_token_is_needed_for_searches_and_for_details(data: Path) -> None:
    token = "a-token-of-many-characters"
    service = RetrievalService(Store.load(data / "tasks", data / "web.jsonl"), "f1", token=token)
    async with serving(service) as client:
        for header in (None, token, f"bearer {token}", f"Bearer {token}x", "Bearer", "Bearer \xe9"):
            headers = {} if header is None else {"Authorization": header}
            for path, body in ((WEB, {"query": "cold"}), (LOCAL, {}), ("/nothing", {})):
                async with client.post(path, json=body, headers=headers) as response:
                    assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
                    assert (await response.json())["error"]["code"] == "unauthorized"
            async with client.get("/health", headers=headers) as response:
                health = await response.json()
                assert health == {"status": "ok", "version": health["version"], "authorized": False}
            async with client.get("/ready", headers=headers) as response:
                assert response.status == 200
        # Under a proxy's name too: a web page does not have the token.
        headers = {"Authorization": f"Bearer {token}", "Host": "proxy.example"}
        async with client.post(WEB, json={"query": "cold"}, headers=headers) as response:
            assert response.status == 200
        async with client.get("/health", headers=headers) as response:
            health = await response.json()
    assert health["fingerprint"] == "f1"
    assert health["requests"][WEB] == {"received": 7, "by_status": {"200": 1, "401": 6}}


async def test_web_pages_are_refused(client: TestClient) -> None:
    async with client.post(WEB, json={"query": "cold"}, headers={"Origin": "http://a.example"}) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (403, "browser")


async def test_a_body_that_does_not_arrive_is_given_up(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_errors, "BODY_DEADLINE_S", 0.05)
    release = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await release.wait()

    async with client.post(WEB, data=slow()) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (408, "slow_body")
    release.set()


async def test_while_loading_searches_are_refused_and_health_says_so() -> None:
    async with serving(RetrievalService()) as client:
        async with client.get("/health") as response:
            assert (response.status, (await response.json())["status"]) == (200, "loading")
        async with client.post(WEB, json={"query": "x"}) as response:
            assert response.status == 503
            assert response.headers["Retry-After"] == "1"
        async with client.get("/ready") as response:
            assert response.status == 503


class _SlowStore(Store):
    """Searches wait until they are released."""

    def __init__(self) -> None:
        super().__init__({})
        self.release = threading.Event()

    def search_web(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        assert self.release.wait(200)
        return []


async def _until_waiting(client: TestClient, count: int) -> None:
    async with asyncio.timeout(200):
        while True:
            async with client.get("/health") as response:
                if (await response.json())["waiting"] == count:
                    return


async def test_a_full_queue_answers_429_and_the_loop_stays_free() -> None:
    store = _SlowStore()
    queue = SearchQueue(workers=1, max_waiting=2)
    async with serving(RetrievalService(store, queue=queue, threads=1)) as client:
        admitted = [asyncio.create_task(post(client, WEB, {"query": "x"})) for _ in range(3)]
        await _until_waiting(client, 2)
        async with client.post(WEB, json={"query": "x"}) as refused:
            assert refused.status == 429
            assert refused.headers["Retry-After"] == "1"
            assert (await refused.json())["error"]["code"] == "queue_full"
        await _until_waiting(client, 2)
        store.release.set()
        assert [status for status, _ in await asyncio.gather(*admitted)] == [200, 200, 200]
        assert queue.waiting == 0


async def test_a_wait_for_a_slot_expires() -> None:
    queue = SearchQueue(workers=1, max_waiting=2, deadline_s=0.01)
    async with queue.slot():
        with pytest.raises(RequestError, match="for a slot") as error:
            async with queue.slot():
                raise AssertionError("admitted beyond the limit")
    assert error.value.status == 503
    async with queue.slot():
        assert queue.waiting == 0


async def test_a_failing_search_answers_500_without_the_query(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Store):
        def search_web(self, query: str, *_: Any, **__: Any) -> list[dict[str, Any]]:
            raise RuntimeError(f"cannot rank {query}")

    async with serving(RetrievalService(Broken({}))) as client:
        status, answer = await post(client, WEB, {"query": "privatecanary"})
    assert (status, answer["error"]["code"]) == (500, "internal")
    assert "privatecanary" not in caplog.text and "RuntimeError" in caplog.text


async def test_many_clients_at_once_get_their_own_answers(client: TestClient) -> None:
    async def ask(i: int) -> None:
        task = ("DR90001", "DR90002")[i % 2]
        status, answer = await post(client, LOCAL, {"task_id": task, "query": "shared cold", "k": 50})
        assert status == 200
        assert {hit["doc_id"].split("/")[1] for hit in answer["hits"]} == {task}

    await asyncio.gather(*(ask(i) for i in range(64)))
