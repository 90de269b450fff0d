"""Whole rollouts on rows in the real formats, against services that answer with documented fields only."""

import json
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from omegaconf import OmegaConf

from domains.privacy_hopqa import llm as engine
from domains.privacy_hopqa import rollouts
from domains.privacy_hopqa.chains import parse_chain
from domains.privacy_hopqa.dataset import load_problems
from domains.privacy_hopqa.leakage.log import audit_files, read_audit_log
from domains.privacy_hopqa.scorer.protocol import parse_request
from pipelinerl.llm import LLMCall, LLMOutput
from retrieval_server.store import Store
from tests.support.agent_harness import done, local, plan, yes
from tests.unit.privacy_hopqa.test_rollouts import FakeLLM, fake_text

EXAMPLES = Path(__file__).resolve().parents[3] / "domains" / "privacy_hopqa" / "examples"
LOCAL_METADATA = {"file_path", "original_path", "folder_path", "doc_ref", "title"}
PROBLEMS = load_problems(
    [str(EXAMPLES / "chains_train.jsonl"), str(EXAMPLES / "chains_val.jsonl")],
    task_data_root=str(EXAMPLES / "tasks"),
)


class Services:
    """A retrieval and a scoring service; both keep the requests they got."""

    def __init__(self):
        self.store = Store.load(EXAMPLES / "tasks", EXAMPLES / "web.jsonl")
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


def oracle(chain):
    """An engine that searches for the question and reads the right answer where it stands."""

    def reply(text):
        stage, _, rest = text.partition("\n")
        question = rest.split("question: ")[1].split("\n")[0]
        hop = next(hop for hop in chain.hops if hop.filled(chain.gold_answers) == question)
        if stage == "plan":
            return (local if hop.source == "local" else plan)(question)
        if stage == "read":
            found = [answer for answer in hop.accepted if answer in rest.replace(question, "")]
            return yes(found[0]) if found else '{"can_answer":false}'
        return done(hop.answer)

    async def generate(llm, prompt, session, max_tokens_override=None):
        output = LLMOutput(content=reply(prompt.messages[0]["content"]))
        return LLMCall(prompt=prompt, output=output, prompt_length_tokens=1, output_length_tokens=1)

    return generate


@pytest.fixture
async def services():
    found = Services()
    server = TestServer(found.app())
    await server.start_server()
    found.url = str(server.make_url(""))
    yield found
    await server.close()


@pytest.fixture
def play(services, tmp_path, monkeypatch):
    monkeypatch.setattr(rollouts, "make_training_text", fake_text)

    async def rollout(problem, **settings):
        monkeypatch.setattr(engine, "llm_async_generate", oracle(problem["chain"]))
        block = {
            "prompt_set": "compact",
            "max_candidate_cards": 6,
            "choose_top_k": 6,
            "helper_service_url": services.url,
            "privacy_reward_service_url": services.url,
            "training_reward_mode": "hop_step_situational",
            "privacy_reward_weight": 1.0,
        }
        cfg = OmegaConf.create({"output_dir": str(tmp_path / "run"), "privacy_hopqa": block | settings})
        async with aiohttp.ClientSession() as session:
            result = await rollouts.generate_privacy_hopqa_rollout(cfg, FakeLLM(), problem, session)
        return result, tmp_path / "run"

    return rollout


@pytest.mark.parametrize("problem", PROBLEMS, ids=[p["chain"].chain_id for p in PROBLEMS])
async def test_a_chain_in_any_spelling_is_solved_rewarded_and_penalised(play, services, problem):
    result, output = await play(problem)
    assert result.failed is None
    assert result.metrics.strict_chain_success
    sources = [hop.source for hop in problem["chain"].hops]
    plans = [text for text in result.training_texts if ":stage:plan:" in text.situation]
    # Each plan finds gold (1.25); one that asks the web with a score of 0.9 pays 0.9 - 0.5.
    expected = [1.25 - 0.4 * (source == "web") for source in sources]
    assert [text.reward for text in plans] == pytest.approx(expected)
    (log,) = read_audit_log(audit_files(output)).rollouts
    sent = [body["query"] for path, body in services.requests if path == "/browsecomp/search"]
    assert log.queries == sent and len(sent) == sources.count("web")


def drop(rows):
    return rows[:-1]


def add(rows):
    return [*rows, {"id": "more", "prob_yes": 0.1}]


def rename(rows):
    return [row | {"id": f"x{row['id']}"} for row in rows]


@pytest.mark.parametrize(
    "answer",
    [
        partial(scored, value=0.5, changes=drop),
        partial(scored, value=0.5, changes=add),
        partial(scored, value=0.5, changes=rename),
        partial(scored, value=float("nan")),
        partial(scored, value=float("inf")),
        partial(scored, value=1.01),
        partial(scored, value=-1),
        partial(scored, value=None),
        partial(scored, value="0.5"),
        lambda examples: "no json",
    ],
    ids=["missing", "extra", "renamed", "NaN", "infinite", "above", "below", "null", "text", "no JSON"],
)
@pytest.mark.parametrize("mode", ["hop_step_situational", "outcome"])
async def test_a_score_that_is_none_fails_the_rollout_and_trains_nothing(play, services, answer, mode):
    services.score = answer
    weight = 1.0 if mode == "hop_step_situational" else 0.0
    result, _ = await play(PROBLEMS[0], training_reward_mode=mode, privacy_reward_weight=weight)
    assert result.failed.startswith("privacy_score: ")
    assert result.training_texts == []
    assert result.metrics is None


async def test_a_chain_without_private_hops_is_not_sent_and_costs_nothing(play, services):
    chain_row = {
        "task_id": "DR0901",
        "chain_id": "public",
        "hops": [
            {
                "hop_number": 1,
                "question": "Which route planning company has its head office in Tarnby?",
                "answer": "Kestrel Systems",
                "doc_id": "web/20110",
                "hop_type": "W",
            }
        ],
    }
    chain = parse_chain(chain_row, company="Harlow Foods", description="", split="train")
    result, _ = await play(PROBLEMS[0] | {"chain": chain})
    assert [text.reward for text in result.training_texts if ":stage:plan:" in text.situation] == [1.25]
    assert all(path != "/score" for path, _ in services.requests)
    assert result.metrics.chain_without_facts
