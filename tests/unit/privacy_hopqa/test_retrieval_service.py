"""The domain and the retrieval server: how it is started, and the token it may ask for."""

from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from omegaconf import OmegaConf

from domains.privacy_hopqa.agent.search_service import check_fingerprint, helper_headers
from domains.privacy_hopqa.agent.transport import JsonClient, RequestRefused
from domains.privacy_hopqa.domain import PrivacyHopQADomain
from pipelinerl.domain import ServiceSpec
from retrieval_server.app import RetrievalService, build_app
from retrieval_server.corpus import WebDocument
from retrieval_server.store import Store
from tests.support.privacy_hopqa.service import Service

TOKEN = "0123456789abcdef"


def service(corpus: Path) -> ServiceSpec:
    cfg = OmegaConf.create(
        {"privacy_hopqa": {"web_corpus_path": str(corpus), "final_dataset_path": "x.jsonl"}}
    )
    (found,) = PrivacyHopQADomain().services(cfg)
    return found


def test_a_large_corpus_is_searched_through_files_and_may_take_longer_to_start(tmp_path: Path) -> None:
    corpus = tmp_path / "web.jsonl"
    corpus.write_text("")
    small = service(corpus)
    assert small.argv[small.argv.index("--backend") + 1] == "rank_bm25"
    with corpus.open("wb") as file:
        file.truncate(3_000_000_000)
    large = service(corpus)
    assert large.argv[large.argv.index("--backend") + 1] == "bm25s"
    assert (small.start_deadline_s, large.start_deadline_s) == (60, 1560)
    assert large.health == "/ready"
    assert large.note == f"bm25s, 3,000.0 MB of web text, index {corpus}.bm25s"


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


async def test_a_service_that_is_not_ready_is_asked_again() -> None:
    loading = web.json_response({"status": "loading"}, status=503)
    service = Service(loading, 404, {"status": "ok", "fingerprint": "f"})
    async with service.client() as client:
        await check_fingerprint(client, "f")
    assert [path for path, _ in service.requests] == ["/health"] * 3
