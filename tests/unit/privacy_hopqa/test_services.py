"""A retrieval service that the user named: asked before the start, told in one line, shown with its sizes."""

import asyncio
import json
import re
import shutil
import tempfile
from contextlib import asynccontextmanager
from functools import cache
from itertools import pairwise

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from omegaconf import OmegaConf

from domains.privacy_hopqa.agent.search_service import ServedWorlds
from domains.privacy_hopqa.agent.transport import JsonClient, Retries
from domains.privacy_hopqa.domain import PrivacyHopQADomain, world_paths
from domains.privacy_hopqa.same_world import Sample, digests, foreign
from domains.privacy_hopqa.world import generate, world_config
from pipelinerl.config import ConfigError
from retrieval_server.app import RetrievalService, build_app
from retrieval_server.backends import default_index
from retrieval_server.corpus import LocalDocument, WebDocument
from retrieval_server.index import main as build_index
from retrieval_server.store import Store
from tests.support.one_line import check_one_line
from tests.support.privacy_hopqa.agent import hop

PAGES = [WebDocument("7", "u", "Region Northmere reports 15% coverage."), WebDocument("10", "u", "other")]
TOKEN = "a-token-of-enough-characters"


def task(task_id):
    return {task_id: [LocalDocument(task_id, "a/audit.md", "In the audit 15% of stores passed.")]}


@pytest.fixture
def chains(tmp_path):
    """One chain of task DR90001 that ends at the page `web/7`."""
    hops = [hop(1, "q?", "15%", "local/DR90001/a/audit.md"), hop(2, "(1)?", "Northmere", "web/7#w01of02")]
    row = {"task_id": "DR90001", "chain_id": "c1", "company": "Harlow Foods", "hops": hops}
    path = tmp_path / "chains_train.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return path


async def asked(url, chains, **settings):
    """What the launcher shows of the service, or of the servers of a list. Raises ConfigError."""
    block = {"helper_service_url": url, "final_train_dataset_path": str(chains)} | settings
    tree = OmegaConf.create({"train_dataset_names": ["train"], "privacy_hopqa": block})
    (service,) = PrivacyHopQADomain().named_services(tree)
    shown = url if isinstance(url, str) else ", ".join(url)
    assert (service.url_key, service.url) == ("privacy_hopqa.helper_service_url", shown)
    return await asyncio.to_thread(service.ask)


@asynccontextmanager
async def serving(app):
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


def ours(tasks, pages=PAGES, token=None):
    return serving(build_app(RetrievalService(Store(tasks, pages), token=token)))


async def test_a_service_that_has_everything_is_shown_with_its_sizes(chains):
    async with ours(task("DR90001") | task("DR90002")) as url:
        said = "2 tasks, 2 pages; all 1 tasks of the chains and 1 gold pages"
        assert await asked(url, chains) == f"{said}; texts not compared, none is here"


@pytest.mark.parametrize(
    ("tasks", "pages", "message"),
    [
        (
            task("DR90002"),
            PAGES,
            "1 of 1 tasks (DR90001) of the chains are not served; start the service with",
        ),
        (task("DR90001"), PAGES[1:], "1 of 1 gold pages (web/7) of the chains are not served; start the"),
        (task("DR90001"), [], "1 of 1 gold pages (web/7) of the chains are not served; start the service"),
    ],
)
async def test_what_the_chains_need_and_the_service_lacks_is_one_line(chains, tasks, pages, message):
    async with ours(tasks, pages) as url:
        with pytest.raises(ConfigError) as error:
            await asked(url, chains)
    (line,) = error.value.problems
    check_one_line(line, f"privacy_hopqa.helper_service_url={url}: {message}")


async def test_pages_are_not_asked_for_without_the_web(chains):
    async with ours(task("DR90001"), []) as url:
        assert "0 gold pages" in await asked(url, chains, no_web=True)


async def test_a_page_that_may_be_known_by_its_url_is_not_asked_for(chains):
    row = json.loads(chains.read_text())
    row["hops"][1]["doc_ref"] = "https://a.example/7"
    chains.write_text(json.dumps(row) + "\n")
    async with ours(task("DR90001"), []) as url:
        assert "0 gold pages" in await asked(url, chains)


async def test_a_page_that_a_chain_needs_by_its_url_is_not_looked_up(chains, tmp_path):
    """The page of the answer is the longest one, which would be looked up first."""
    row = json.loads(chains.read_text())
    row["hops"][1]["doc_id"] = "https://a.example/7"
    chains.write_text(json.dumps(row) + "\n")
    needed, other = "Region Northmere reports a coverage of fifteen percent.", "Tides of the bay."
    pages = [
        {"docid": "7", "url": "https://a.example/7", "text": needed},
        {"docid": "8", "url": "https://a.example/8", "text": other},
    ]
    corpus = tmp_path / "web.jsonl"
    corpus.write_text("".join(json.dumps(page) + "\n" for page in pages))
    queries = []

    @web.middleware
    async def as_of_another_make(request, handler):
        if request.path == "/known":
            raise web.HTTPNotFound
        if request.path == "/browsecomp/search":
            queries.append((await request.json())["query"])
        return await handler(request)

    app = build_app(RetrievalService(Store(task("DR90001"), [WebDocument(**page) for page in pages])))
    app.middlewares.append(as_of_another_make)
    async with serving(app) as url:
        await asked(url, chains, web_corpus_path=str(corpus))
    assert queries == [other]


async def test_a_missing_and_a_wrong_token_are_one_line(chains, monkeypatch):
    async with ours(task("DR90001"), token=TOKEN) as url:
        for given in (None, "another-token-of-enough-characters"):
            if given:
                monkeypatch.setenv("RETRIEVAL_TOKEN", given)
            with pytest.raises(ConfigError, match="asks for a token; set RETRIEVAL_TOKEN"):
                await asked(url, chains)
        monkeypatch.setenv("RETRIEVAL_TOKEN", TOKEN)
        assert "all 1 tasks" in await asked(url, chains)


async def test_characters_that_the_service_would_cut_are_one_line(chains):
    async with ours(task("DR90001")) as url:
        message = (
            "gives 200000 characters, privacy_hopqa.retrieval_source_chars=300000 asks for more; raise its"
        )
        with pytest.raises(ConfigError, match=f"{message} --max-hit-chars"):
            await asked(url, chains, retrieval_source_chars=300_000)


async def test_nobody_there_is_one_line(chains, unused_tcp_port, monkeypatch):
    monkeypatch.setattr("domains.privacy_hopqa.agent.transport.Retries.wait_s", lambda *_: 0.0)
    with pytest.raises(ConfigError) as error:
        await asked(f"http://127.0.0.1:{unused_tcp_port}", chains)
    check_one_line(str(error.value), "start it, or leave the key out and the run starts one")


@pytest.mark.parametrize(("status", "error"), [(200, None), (404, "1 of 1 tasks (DR90001) of the chains")])
async def test_a_service_of_another_make_is_asked_by_a_search_in_each_task(chains, status, error):
    """It knows the two searches and /health, as the published helper service."""
    queries = []

    async def health(_):
        return web.json_response({"status": "ok"})

    async def search(request):
        queries.append(await request.json())
        return web.json_response({"hits": []}, status=status)

    app = web.Application()
    app.router.add_get("/health", health)
    app.router.add_post("/local/search", search)
    async with serving(app) as url:
        if error is None:
            said = await asked(url, chains)
            served = "? tasks, ? pages; all 1 tasks of the chains, gold pages not asked for"
            assert said == f"{served}; texts not compared, none is here"
        else:
            with pytest.raises(ConfigError) as refused:
                await asked(url, chains)
            assert error in str(refused.value)
    assert queries == [{"task_id": "DR90001", "query": "DR90001", "k": 1}]  # nothing that is researched


async def test_each_server_of_a_list_is_asked_and_all_serve_alike(chains, unused_tcp_port, monkeypatch):
    async with ours(task("DR90001")) as one, ours(task("DR90001")) as same, ours(task("DR90002")) as poor:
        assert (await asked([one, same], chains)).startswith("each 1 tasks, 2 pages; all 1 tasks of the")
        with pytest.raises(ConfigError) as error:
            await asked([one, poor], chains)
        (line,) = error.value.problems
        check_one_line(line, f"privacy_hopqa.helper_service_url={poor}: 1 of 1 tasks (DR90001) of the chains")
        monkeypatch.setattr("domains.privacy_hopqa.agent.transport.Retries.wait_s", lambda *_: 0.0)
        dead = f"http://127.0.0.1:{unused_tcp_port}"
        with pytest.raises(
            ConfigError, match=f"helper_service_url={dead}: .* start it, or leave the key out"
        ):
            await asked([one, dead], chains)
    async with ours(task("DR90001")) as one, ours(task("DR90001") | task("DR90002")) as more:
        with pytest.raises(ConfigError) as error:
            await asked([one, more], chains)
        (line,) = error.value.problems
        check_one_line(
            line, f"privacy_hopqa.helper_service_url: tasks is 1 at {one} and 2 at {more}; give all"
        )


TINY = {"size": "tiny", "seed": 3}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """The world of a run, and another that has the same tasks and pages by name."""
    folder = tmp_path_factory.mktemp("worlds")
    return [generate(world_config(**TINY | {"seed": seed}), folder / f"world_{seed}") for seed in (3, 4)]


def without_manifest(world, tmp_path):
    copied = tmp_path / f"bare_{world.name}"
    shutil.copytree(world, copied)
    (copied / "manifest.json").unlink()
    return copied


@cache
def loaded(world):
    return Store.load(world / "tasks", world / "web.jsonl")


def served(world, **more):
    return serving(build_app(RetrievalService(loaded(world), **more)))


async def asked_for(url, **settings):
    tree = OmegaConf.create(
        {"train_dataset_names": ["train"], "privacy_hopqa": {"helper_service_url": url} | settings}
    )
    (service,) = PrivacyHopQADomain().named_services(tree)
    return await asyncio.to_thread(service.ask)


@pytest.mark.parametrize("own", [True, False], ids=["own files", "a world that the start makes"])
async def test_a_world_with_the_same_names_and_other_texts_is_refused(own, worlds, tmp_path):
    mine, *others = worlds
    bare = without_manifest(mine, tmp_path)
    paths = {name.partition(".")[2]: path for name, path in world_paths(bare).items()}
    settings = paths if own else {"world": TINY}
    async with served(mine) as url:
        assert "texts compared" in await asked_for(url, **settings)
    for other in others:
        async with served(other) as url:
            with pytest.raises(ConfigError, match="serves another world: it lacks ") as error:
                await asked_for(url, **settings)
        check_one_line(
            error.value.problems[0], f"privacy_hopqa.helper_service_url={url}: serves another world"
        )
        made = json.loads((other / "manifest.json").read_text())["fingerprint"]
        async with served(other, fingerprint=made) as url:
            with pytest.raises(ConfigError, match=r"serves (another )?world"):
                await asked_for(url, **settings)


@pytest.mark.parametrize(
    ("key", "of"),
    [("task_data_root", "tasks"), ("web_corpus_path", "web.jsonl"), ("final_train_dataset_path", "both")],
)
def test_chains_about_other_files_are_refused(key, of, worlds, tmp_path):
    """Whether the chains are of another world or the files; both have the same tasks by name."""
    mine, other = (without_manifest(world, tmp_path) for world in worlds)
    own = {name.partition(".")[2]: path for name, path in world_paths(mine).items()}

    def said(settings):
        tree = {"train_dataset_names": ["train"], "privacy_hopqa": settings}
        return [line for line in PrivacyHopQADomain().validate(OmegaConf.create(tree)) if "gold" in line]

    assert said(own) == []
    name = "chains_train.jsonl" if of == "both" else of
    lines = said(own | {key: str(other / name)})
    assert [line.partition("=")[0] for line in lines] == (
        ["privacy_hopqa.task_data_root", "privacy_hopqa.web_corpus_path"]
        if of == "both"
        else [f"privacy_hopqa.{key}"]
    )
    rows = [json.loads(line) for line in (mine / "chains_train.jsonl").read_text().splitlines()]
    hops = sum(one["hop_type"] == "L" for row in rows for one in row["hops"])
    if of == "tasks":
        assert f": {hops} of {hops} gold documents of the chains are not there" in lines[0]


async def test_a_world_that_is_about_to_be_made_is_not_named_by_a_folder_that_will_be_gone():
    async with ours(task("DR90001")) as url:
        with pytest.raises(ConfigError, match=r"tasks .* of the chains are not served") as error:
            await asked_for(url, world=TINY)
    for problem in error.value.problems:
        assert tempfile.gettempdir() not in problem
        assert "leave the key out and the run starts" in problem


def altered(path):
    path.write_text(path.read_text()[::-1])


def a_page_with(page):
    def alter(world):
        lines = [json.loads(line) for line in (world / "web.jsonl").open()]
        lines[page]["text"] += " x"
        (world / "web.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return f"web/{lines[page]['docid']}"

    return alter


def the_shortest_document(world):
    file = min((world / "tasks").glob("DR90*/files/**/*.md"), key=lambda file: file.stat().st_size)
    altered(file)
    return f"local/{file.relative_to(world / 'tasks').as_posix().replace('/files/', '/')}"


def the_address_of_a_page(world):
    lines = [json.loads(line) for line in (world / "web.jsonl").open()]
    lines[7]["url"] += "#other"
    (world / "web.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"web/{lines[7]['docid']}"


@pytest.mark.parametrize(
    "alter", [the_shortest_document, a_page_with(0), a_page_with(-1), the_address_of_a_page]
)
async def test_one_text_that_differs_is_seen_wherever_it_stands(alter, worlds, tmp_path):
    """Neither the longest text of its task nor one of the first pages, and nobody searches for it."""
    other = without_manifest(worlds[0], tmp_path)
    named = alter(other)
    async with served(other) as url:
        with pytest.raises(ConfigError) as error:
            await asked_for(url, world=TINY)
    check_one_line(error.value.problems[0], "serves another world: it lacks 1 of ")
    assert (
        f" texts ({named}) that were compared; start it on the files of this run" in error.value.problems[0]
    )


async def test_pages_beside_those_of_the_run_are_told(worlds, tmp_path):
    other = without_manifest(worlds[0], tmp_path)
    with (other / "web.jsonl").open("a") as file:
        for number in range(3):
            file.write(json.dumps({"docid": f"more-{number}", "url": "https://h/x", "text": "more"}) + "\n")
    async with served(other) as url:
        assert "compared, and 3 pages are served that this run does not have" in await asked_for(
            url, world=TINY
        )
    async with served(worlds[0]) as url:
        assert "pages are served" not in await asked_for(url, world=TINY)


async def test_private_documents_beside_those_of_the_run_are_told(worlds, tmp_path):
    other = without_manifest(worlds[0], tmp_path)
    for folder in (other / "tasks").glob("DR90*"):  # tasks of the training chains; others are not asked for
        (folder / "files" / "more.md").write_text("another report")
    of_the_run = {json.loads(line)["task_id"] for line in (other / "chains_train.jsonl").open()}
    said = f"{len(of_the_run)} private documents of its tasks are served that this run does not have"
    async with served(other) as url:
        assert said in await asked_for(url, world=TINY)


async def test_a_large_web_corpus_is_compared_at_places_all_over_it(worlds, tmp_path, monkeypatch):
    monkeypatch.setattr("domains.privacy_hopqa.same_world.WHOLE_BYTES", 0)
    monkeypatch.setattr("domains.privacy_hopqa.same_world.SPREAD", 40)
    other = without_manifest(worlds[0], tmp_path)
    ids = [json.loads(line)["docid"] for line in (other / "web.jsonl").open()]
    asked = [id_ for id_ in digests(None, str(other / "web.jsonl"), ()) if ids.index(id_[4:]) >= 0]
    places = [ids.index(id_[4:]) for id_ in asked]
    assert places[0] == 0 and places == sorted(places) and 20 < len(places) <= 41
    assert max(after - before for before, after in pairwise(places)) <= len(ids) / 5
    async with served(worlds[0]) as url:
        assert "texts compared" in await asked_for(url, world=TINY)


async def test_a_service_that_finds_another_text_first_is_not_called_foreign():
    """Of a service that can only be searched, half of the texts of a kind decide, each kind by itself."""
    texts = [Sample(f"local/{n}", "/local/search", "a", "T") for n in range(4)]
    pages = [Sample(f"web/{n}", "/browsecomp/search", "a") for n in range(3)]
    assert foreign(pages[:1], texts + pages) == [] == foreign(texts[:1], texts) == foreign([], [])
    assert foreign(pages[:2], texts + pages) == ["web/0", "web/1"]
    assert foreign(texts[:2], texts + pages) == ["local/0", "local/1"]


async def test_a_text_that_differs_is_seen_also_under_the_fingerprint_of_the_run(worlds, tmp_path):
    """A fingerprint is copied with a command, and stays when files are changed behind it."""
    mine = json.loads((worlds[0] / "manifest.json").read_text())["fingerprint"]
    async with served(worlds[0], fingerprint=mine) as url:
        assert " texts compared" in await asked_for(url, world=TINY)
    other = without_manifest(worlds[0], tmp_path)
    named = the_shortest_document(other)
    async with served(other, fingerprint=mine) as url:
        with pytest.raises(ConfigError, match=f"it lacks 1 of .* texts \\({re.escape(named)}\\)"):
            await asked_for(url, world=TINY)


async def test_no_query_to_the_web_is_about_a_page_that_the_chains_need(worlds):
    """A private text is looked up in its task alone, and pages that no chain names by their own words."""
    asked_of, rows = [], []
    for split in ("train", "val", "test"):
        rows += [json.loads(line) for line in (worlds[0] / f"chains_{split}.jsonl").open()]
    gold = {hop["doc_id"].removeprefix("web/") for row in rows for hop in row["hops"]}
    pages = [json.loads(line) for line in (worlds[0] / "web.jsonl").open()]
    needed = set().union(*(page["text"].split() for page in pages if page["docid"] in gold))
    public = [page["text"] for page in pages if page["docid"] not in gold]

    @web.middleware
    async def note(request, handler):
        if request.path == "/known":  # as a service of another make, which has to be searched
            raise web.HTTPNotFound
        if request.path.endswith("search"):
            asked_of.append((request.path, await request.json()))
        return await handler(request)

    app = build_app(RetrievalService(loaded(worlds[0])))
    app.middlewares.append(note)
    async with serving(app) as url:
        await asked_for(url, world=TINY)
    assert {path for path, _ in asked_of} == {"/browsecomp/search", "/local/search"} and needed
    for path, body in asked_of:
        words = set(body["query"].split())
        if words == {body.get("task_id")}:  # whether the task is there
            continue
        if path == "/browsecomp/search":
            assert "task_id" not in body and any(words <= set(text.split()) for text in public)
        else:
            folder = worlds[0] / "tasks" / body["task_id"] / "files"
            assert any(words <= set(file.read_text().split()) for file in folder.rglob("*.*"))


@pytest.mark.parametrize("named", [True, False], ids=["fingerprints", "texts alone"])
async def test_a_service_that_is_exchanged_during_a_run_is_noticed_at_its_next_answer(
    named, worlds, tmp_path, caplog
):
    """Both worlds have the same tasks, so that its searches go on finding something."""
    mine, other = (
        RetrievalService(loaded(world), f"f{n}" if named else None) for n, world in enumerate(worlds)
    )
    service = RetrievalService(mine.store, mine.fingerprint)
    search = {"task_id": mine.store.task_ids[0], "query": "report"}
    async with serving(build_app(service)) as url, aiohttp.ClientSession() as session:
        client = JsonClient(url, session, 60, Retries(()), check=ServedWorlds(tmp_path).check)
        for _ in range(2):
            await client.post("/local/search", search)
        service.store = Store.load(worlds[0] / "tasks", worlds[0] / "web.jsonl")  # started again on the same
        await client.post("/local/search", search)
        service.store, service.fingerprint = other.store, other.fingerprint
        said = "was exchanged during the run: its answers are of world "
        with pytest.raises(ValueError, match=said + ("f1, those before of f0" if named else "")) as refused:
            await client.post("/local/search", search)
        assert "\n" not in str(refused.value) and not caplog.records
        for remarks in (1, 1):  # a later start, and another worker of it or one more
            again = JsonClient(url, session, 60, Retries(()), check=ServedWorlds(tmp_path).check)
            await again.post("/local/search", search)
            assert len(caplog.records) == remarks and caplog.records[0].remark
        assert "serves world " + ("f1, in the last start f0: " if named else "") in caplog.text


async def test_both_back_ends_tell_the_same_world(worlds, tmp_path):
    copied = without_manifest(worlds[0], tmp_path)
    index = default_index(copied / "web.jsonl")
    assert build_index(["--web", str(copied / "web.jsonl")]) == 0
    stores = [Store.load(copied / "tasks", copied / "web.jsonl", where) for where in (None, index)]
    assert stores[0].digest == stores[1].digest
    (next((copied / "tasks").rglob("*.md"))).write_text("another text")
    assert Store.load(copied / "tasks", copied / "web.jsonl").digest != stores[0].digest
