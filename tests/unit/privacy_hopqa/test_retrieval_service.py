"""The domain and the retrieval server: how it is started, and the token it may ask for."""

from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from omegaconf import OmegaConf

from domains.privacy_hopqa.agent.runtime import check_fingerprint, helper_headers
from domains.privacy_hopqa.agent.transport import JsonClient, RequestRefused
from domains.privacy_hopqa.domain import PrivacyHopQADomain
from domains.privacy_hopqa.settings import settings_of
from pipelinerl.domain import ServiceSpec
from retrieval_server.app import RetrievalService, build_app
from retrieval_server.corpus import WebDocument
from retrieval_server.store import Store

TOKEN = "0123456789abcdef"


def service(web: Path) -> ServiceSpec:
    cfg = OmegaConf.create({"privacy_hopqa": {"web_corpus_path": str(web), "final_dataset_path": "x.jsonl"}})
    (found,) = PrivacyHopQADomain().services(cfg)
    return found


def test_a_large_corpus_is_searched_through_files_and_may_take_longer_to_start(tmp_path: Path) -> None:
    web = tmp_path / "web.jsonl"
    web.write_text("")
    small = service(web)
    assert small.argv[small.argv.index("--backend") + 1] == "rank_bm25"
    with web.open("wb") as file:
        file.truncate(3_000_000_000)
    large = service(web)
    assert large.argv[large.argv.index("--backend") + 1] == "bm25s"
    assert (small.start_deadline_s, large.start_deadline_s) == (60, 1560)
    assert large.health == "/ready"
    assert large.note == f"bm25s, 3,000.0 MB of web text, index {web}.bm25s"


async def test_the_token_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without it a search is refused and the world that is served is not told."""
    manifest = tmp_path / "manifest.json"
    manifest.write_text('{"fingerprint": "another"}')
    settings = settings_of(
        OmegaConf.create(
            {"privacy_hopqa": {"final_dataset_path": "x", "task_data_root": str(tmp_path / "tasks")}}
        )
    )
    store = Store({}, [WebDocument("7", "u", "coverage of stores")])
    app = build_app(RetrievalService(store, "served", token=TOKEN))
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        url = str(server.make_url(""))

        async def search() -> object:
            client = JsonClient(url, session, 30, headers=helper_headers())
            return await client.post("/browsecomp/search", {"query": "coverage"})

        monkeypatch.delenv("RETRIEVAL_TOKEN", raising=False)
        with pytest.raises(RequestRefused, match="401"):
            await search()
        with pytest.raises(ValueError, match="asks for a token; set RETRIEVAL_TOKEN"):
            await check_fingerprint(url, settings, session)
        monkeypatch.setenv("RETRIEVAL_TOKEN", TOKEN)
        assert await search()
        with pytest.raises(ValueError, match="serves world served, the chains belong to another"):
            await check_fingerprint(url, settings, session)
