"""The rollout policy against a real retrieval server, with a scripted engine."""

import asyncio
import json
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from domains.privacy_hopqa import rollouts
from domains.privacy_hopqa.agent import llm as engine
from domains.privacy_hopqa.agent.errors import AuditFailure, TransportFailure
from domains.privacy_hopqa.agent.search_service import HttpSearcher
from domains.privacy_hopqa.agent.traces import sampled
from domains.privacy_hopqa.agent.transport import JsonClient, Retries
from domains.privacy_hopqa.leakage.log import audit_files, read_audit_log
from pipelinerl.rollouts import ROLLOUT_ORIGIN, RolloutOrigin
from retrieval_server.app import RetrievalService, build_app
from retrieval_server.corpus import LocalDocument, WebDocument
from retrieval_server.store import Store
from tests.support.privacy_hopqa.agent import TWO_HOPS
from tests.support.privacy_hopqa.rollouts import answer_with, attempt, oracle
from tests.support.privacy_hopqa.service import Service

STORE = Store(
    {"DR90001": [LocalDocument("DR90001", "files_a/audit.md", "In the audit 15% of stores passed.")]},
    [WebDocument("7", "u", "Region Northmere reports 15% coverage.")],
)


@pytest.fixture
def sent(monkeypatch):
    return answer_with(monkeypatch, partial(oracle, TWO_HOPS))


@pytest.fixture
async def run(tmp_path, sent):
    async with TestServer(build_app(RetrievalService(STORE, "f1"))) as server:
        here = {"helper_service_url": str(server.make_url(""))}

        async def rollout(**settings):
            output = tmp_path / "run"
            return await attempt(TWO_HOPS, output, **(here | settings)), output

        yield rollout


def lines_of(folder):
    return [json.loads(line) for path in folder.iterdir() for line in path.read_text().splitlines()]


@contextmanager
def scheduled_as(*origin, **fields):
    token = ROLLOUT_ORIGIN.set(RolloutOrigin(*origin, **fields))
    try:
        yield
    finally:
        ROLLOUT_ORIGIN.reset(token)


async def test_a_rollout_returns_texts_metrics_and_leaves_its_records(run):
    result, output = await run(training_reward_mode="hop_step_situational", trace_fraction=1.0)
    assert result.failed is None
    assert result.metrics.success
    assert [text.reward for text in result.training_texts] == [1.25, 1.25]
    first = result.training_texts[0]
    assert first.situation == "privacy_hopqa:hop:1:stage:plan:gold_not_yet_retrieved"
    assert first.metadata["exact_versions"] is False
    assert first.metadata["gold_retrieved"]
    assert [text.metadata.get("final_answer") for text in result.training_texts] == [None, "Northmere"]
    assert (result.domain, result.dataset_name) == ("privacy_hopqa", "toy")
    log = read_audit_log(audit_files(output))
    assert [r.queries for r in log.rollouts] == [["Which region reports 15% coverage?"]]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (output / "traces").iterdir())
    assert log.unfinished == ()
    (trace,) = lines_of(output / "traces")
    assert trace["calls"][0]["prompt"].startswith("plan")


async def test_the_scheduler_names_the_rollout_in_the_audit_log(run):
    with scheduled_as("group", 3, 17, True):
        _, output = await run()
    (line,) = [line for line in lines_of(output / "audit") if line.get("event") == "rollout"]
    assert line["rollout_id"].startswith("group/3#")
    assert (line["group_id"], line["model_version"], line["training"]) == ("group", 17, True)


async def test_the_budget_counts_the_exact_ids(run, sent):
    await run(
        generation_context_limit_tokens=400, generation_context_margin_tokens=20, hop_plan_max_tokens=300
    )
    tokens, budget = sent[0]
    assert budget == min(300, 400 - tokens - 20)


async def test_a_prompt_without_room_is_an_error_without_a_call(run, sent):
    result, _ = await run(generation_context_limit_tokens=50, generation_context_margin_tokens=20)
    assert not sent
    assert result.failed is None
    assert result.training_texts == []
    assert result.metrics.errors_context_overflow == 1
    assert result.metrics.llm_calls == 0


@pytest.mark.parametrize(
    ("failure", "failed"),
    [(TransportFailure("down"), "transport: down"), (AuditFailure("full"), "audit: full")],
)
async def test_what_no_policy_can_help_is_a_failed_rollout_without_texts(run, monkeypatch, failure, failed):
    async def down(*args, **kwargs):
        raise failure

    monkeypatch.setattr(rollouts.HttpSearcher, "search", down)
    result, output = await run()
    assert result.failed == failed
    assert result.training_texts == []
    assert result.metrics is None
    log = read_audit_log(audit_files(output))
    assert (log.rollouts, len(log.unfinished)) == ((), 1)


@pytest.mark.parametrize("answers", [404, 401, {"hits": "none"}])
async def test_a_rollout_whose_searches_of_one_source_are_all_refused_is_a_failed_one(
    run, monkeypatch, answers
):
    local = "every local search was refused"
    async with Service(answers).client() as broken:
        post = JsonClient.post

        async def refused(client, path, body):
            return await post(broken if path == "/local/search" else client, path, body)

        monkeypatch.setattr(JsonClient, "post", refused)
        result, _ = await run()
    assert result.failed.startswith(f"search_failed: {local}, the last one: ")
    assert result.training_texts == []


async def test_a_query_that_no_service_takes_is_the_policy_s_own_fault(run, monkeypatch):
    async with Service(400).client() as strict:
        post = JsonClient.post
        monkeypatch.setattr(JsonClient, "post", lambda _, path, body: post(strict, path, body))
        result, _ = await run()
    assert result.failed is None
    assert result.metrics.model_extra["errors_search_failed"] > 0


async def test_searches_survive_the_outage_of_the_settings(run, monkeypatch):
    made = []

    def searcher(client, *others):
        made.append(client)
        return HttpSearcher(client, *others)

    monkeypatch.setattr(rollouts, "HttpSearcher", searcher)
    await run(helper_outage_s=7)
    assert [client.retries for client in made] == [Retries(outage_s=7)]


async def test_by_default_a_rollout_leaves_its_lines_in_the_audit_log_and_the_name_of_what_it_searched(run):
    for _ in range(3):
        _, output = await run()
    files = [path.relative_to(output) for path in output.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files if path != Path("actor/world_digest")} == {"audit"}
    assert len(files) == 2


async def test_the_deadline_of_a_rollout_fails_it(run, monkeypatch):
    async def stuck(*args, **kwargs):
        await asyncio.sleep(60)

    monkeypatch.setattr(rollouts.HttpSearcher, "search", stuck)
    result, _ = await run(rollout_timeout_s=0.3)
    assert result.failed == "timeout: privacy_hopqa.rollout_timeout_s=0.3 passed"


async def test_an_aborted_completion_is_left_to_the_scheduler(run, monkeypatch):
    async def aborted(*args, **kwargs):
        raise TimeoutError("aborted twice")

    monkeypatch.setattr(engine, "llm_async_generate", aborted)
    with pytest.raises(TimeoutError, match="aborted twice"):
        await run()


@pytest.mark.parametrize("switch", [{"answer_context": "gold"}, {"stop_after_incorrect_hop": True}])
async def test_gold_is_refused_in_evaluation(run, switch):
    await run(**switch)
    with scheduled_as("group", 0, 1, training=False), pytest.raises(ValueError, match="refused"):
        await run(**switch)


async def test_a_service_with_another_world_is_an_error(run, tmp_path):
    (tmp_path / "world" / "tasks").mkdir(parents=True)
    (tmp_path / "world" / "manifest.json").write_text('{"fingerprint":"f2"}')
    with pytest.raises(ValueError, match="serves world f1, the chains belong to f2"):
        await run(task_data_root=str(tmp_path / "world" / "tasks"))


def test_traces_are_sampled_by_the_rollouts_name():
    names = [f"g/{n}" for n in range(2000)]
    share = sum(sampled(name, 0.1) for name in names) / len(names)
    assert 0.05 < share < 0.15
    assert not any(sampled(name, 0.0) for name in names)
    assert all(sampled(name, 1.0) for name in names)
