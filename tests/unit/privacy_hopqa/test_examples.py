"""The small set in the real formats: loaded, served, validated and played as a user's own files would be."""

import json
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from domains.privacy_hopqa.dataset import load_problems
from domains.privacy_hopqa.leakage.log import audit_files, read_audit_log
from domains.privacy_hopqa.scorer.protocol import parse_request
from domains.privacy_hopqa.validate.__main__ import main as validate
from pipelinerl.launch import main as launch
from retrieval_server.store import Store
from tests.support.privacy_hopqa.rollouts import answer_with, attempt, oracle

EXAMPLES = Path(__file__).resolve().parents[3] / "domains" / "privacy_hopqa" / "examples"
FILES = [str(EXAMPLES / f"chains_{split}.jsonl") for split in ("train", "val")]
CHAINS = [p["chain"] for p in load_problems(FILES, task_data_root=str(EXAMPLES / "tasks"))]
OVERRIDES = [
    f"privacy_hopqa.final_train_dataset_path={EXAMPLES}/chains_train.jsonl",
    f"privacy_hopqa.final_val_dataset_path={EXAMPLES}/chains_val.jsonl",
    f"privacy_hopqa.task_data_root={EXAMPLES}/tasks",
    f"privacy_hopqa.web_corpus_path={EXAMPLES}/web.jsonl",
    "train_dataset_names=[train]",
    "test_dataset_names=[val]",
]


@pytest.fixture(scope="module")
def store():
    return Store.load(EXAMPLES / "tasks", EXAMPLES / "web.jsonl")


def test_the_validator_finds_nothing_wrong():
    assert validate([str(EXAMPLES)]) == 0


def test_every_spelling_of_every_field_is_understood():
    by_id = {chain.chain_id: chain for chain in CHAINS}
    assert len(CHAINS) == 9
    assert {chain.task_id for chain in CHAINS} == {"DR0901", "DR0902"}
    assert {chain.company for chain in CHAINS} == {"Harlow Foods", "Orrin Freight"}
    assert by_id["harlow_vendor_city"].pattern == by_id["harlow_loyalty_award"].pattern == "LW"
    assert by_id["harlow_audit_region"].hops[1].question.startswith("In which region did (1)")
    assert by_id["orrin_hall"].hops[2].dependencies == (2,)
    assert [fact.answer for fact in by_id["orrin_claims_seal"].private_questions("task")] == ["12 days", "38"]


def test_answer_files_and_their_fields_never_appear_in_a_hit(store):
    answers = ["Not indexed", "must never be found", "qa_type", "insight", "specific_question", "How should"]
    hits = [
        hit
        for query in [*answers, "answer question title file documents stores", "the a of and company"]
        for hit in [
            *store.search_web(query, 50, 0),
            *(hit for task in store.task_ids for hit in store.search_local(task, query, 50)),
        ]
    ]
    assert hits
    for answer in answers:
        assert answer not in json.dumps(hits)


def test_the_launcher_accepts_them_without_a_change_of_code(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    arguments = ["+domain=privacy_hopqa", "hardware=cpu", f"output_dir={tmp_path / 'run'}", *OVERRIDES]
    assert launch([*arguments, "validate=true"]) == 0
    assert "the configuration is valid" in capsys.readouterr().out


def test_a_row_that_cannot_be_used_is_an_error_before_anything_starts(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    lines = (EXAMPLES / "chains_train.jsonl").read_text().splitlines()
    row = json.loads(lines[1])
    del row["hops"][0]["answer"]
    path = tmp_path / "chains_train.jsonl"
    path.write_text("\n".join([lines[0], json.dumps(row)]))
    arguments = ["+domain=privacy_hopqa", "hardware=cpu", f"output_dir={tmp_path / 'run'}", *OVERRIDES]
    arguments += [f"privacy_hopqa.final_train_dataset_path={path}", "validate=true"]
    assert launch(arguments) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "chains_train.jsonl:2: hop 1: answer is missing" in line


LOCAL_METADATA = {"file_path", "original_path", "folder_path", "doc_ref", "title"}


class Services:
    """A retrieval and a scoring service; both keep the requests they got."""

    def __init__(self, store):
        self.store = store
        self.score = partial(scored, value=0.9)
        self.requests = []

    def app(self):
        app = web.Application()
        app.router.add_get("/health", self.health)
        app.router.add_post("/local/search", self.local)
        app.router.add_post("/browsecomp/search", self.web)
        app.router.add_post("/score", self.scores)
        return app

    async def health(self, _):
        return web.json_response({"status": "ok", "version": "0"})

    async def _body(self, request):
        body = await request.json()
        self.requests.append((request.path, body))
        return body

    async def local(self, request):
        body = await self._body(request)
        assert set(body) == {"task_id", "query", "k", "threshold"}
        hits = self.store.search_local(body["task_id"], body["query"], body["k"], body["threshold"])
        for hit in hits:
            hit["metadata"] = {key: hit["metadata"][key] for key in LOCAL_METADATA}
        kept = ("doc_id", "content", "preview", "similarity_score", "metadata")
        return web.json_response({"hits": [{key: hit[key] for key in kept} for hit in hits]})

    async def web(self, request):
        body = await self._body(request)
        assert set(body) == {"query", "k", "task_id", "max_chars"} and body["max_chars"] == 0
        hits = self.store.search_web(body["query"], body["k"], body["max_chars"])
        kept = ("docid", "raw_docid", "url", "text", "score", "source", "text_chars", "truncated")
        return web.json_response({"hits": [{key: hit[key] for key in kept} for hit in hits]})

    async def scores(self, request):
        body = await self._body(request)
        parse_request(json.dumps(body).encode())
        return web.Response(text=self.score(body["examples"]), content_type="application/json")


def scored(examples, value=None, changes=lambda rows: rows):
    rows = [{"id": example["id"], "prob_yes": value} for example in examples]
    return json.dumps({"scores": changes(rows), "scorer": "stub", "version": "0"})


@pytest.fixture
async def services(store):
    found = Services(store)
    async with TestServer(found.app()) as server:
        found.url = str(server.make_url(""))
        yield found


@pytest.fixture
def play(services, tmp_path, monkeypatch):
    async def rollout(chain, **settings):
        answer_with(monkeypatch, partial(oracle, chain))
        block = {
            "choose_top_k": 6,
            "helper_service_url": services.url,
            "privacy_reward_service_url": services.url,
            "training_reward_mode": "hop_step_situational",
            "privacy_reward_weight": 1.0,
        }
        return await attempt(chain, tmp_path / "run", **(block | settings)), tmp_path / "run"

    return rollout


@pytest.mark.parametrize("chain", CHAINS, ids=[chain.chain_id for chain in CHAINS])
async def test_a_chain_in_any_spelling_is_solved_rewarded_and_penalised(play, services, chain):
    result, output = await play(chain)
    assert result.failed is None
    assert result.metrics.strict_chain_success
    sources = [hop.source for hop in chain.hops]
    plans = [text for text in result.training_texts if ":stage:plan:" in text.situation]
    # Each plan finds gold (1.25); one that asks the web with a score of 0.9 pays 0.9 - 0.5.
    expected = [1.25 - 0.4 * (source == "web") for source in sources]
    assert [text.reward for text in plans] == pytest.approx(expected)
    (log,) = read_audit_log(audit_files(output)).rollouts
    sent = [body["query"] for path, body in services.requests if path == "/browsecomp/search"]
    assert log.queries == sent and len(sent) == sources.count("web")


@pytest.mark.parametrize(
    "answer",
    [
        partial(scored, value=0.5, changes=lambda rows: rows[:-1]),
        partial(scored, value=float("nan")),
    ],
    ids=["missing", "NaN"],
)
@pytest.mark.parametrize("mode", ["hop_step_situational", "outcome"])
async def test_a_score_that_is_none_fails_the_rollout_and_trains_nothing(play, services, answer, mode):
    services.score = answer
    weight = 1.0 if mode == "hop_step_situational" else 0.0
    result, _ = await play(CHAINS[0], training_reward_mode=mode, privacy_reward_weight=weight)
    assert result.failed.startswith("privacy_score: ")
    assert result.training_texts == []
    assert result.metrics is None
