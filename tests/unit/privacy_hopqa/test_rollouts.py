"""The rollout policy against a real retrieval server, with a scripted engine."""

import json

import aiohttp
import numpy as np
import pytest
from aiohttp.test_utils import TestServer
from omegaconf import OmegaConf

from domains.privacy_hopqa import llm as engine
from domains.privacy_hopqa import rollouts, runtime
from domains.privacy_hopqa.errors import TransportFailure
from domains.privacy_hopqa.leakage.log import audit_files, read_audit_log
from domains.privacy_hopqa.traces import sampled
from domains.privacy_hopqa.transport import Retries
from pipelinerl.llm import LLMCall, LLMOutput, Prompt
from pipelinerl.rollouts import ROLLOUT_ORIGIN, RolloutOrigin, TrainingText
from retrieval_server.app import RetrievalService, build_app
from retrieval_server.corpus import LocalDocument, WebDocument
from retrieval_server.limits import SearchQueue
from retrieval_server.store import Store
from tests.support.agent_harness import TWO_HOPS, choose, done, local, plan, yes


class FakeLLM:
    """Ids are characters; the answer depends on the first line and the question of the prompt."""

    def prompt_ids(self, prompt: Prompt) -> np.ndarray:
        return np.array([ord(c) for c in prompt.messages[0]["content"]], np.int32)


def answer(text):
    second = "Which region" in text
    stage = text.split("\n")[0]
    if stage == "plan":
        return plan("region coverage") if second else local("audit stores")
    if stage == "choose":
        return choose("d1")
    if stage == "read":
        return yes("Northmere" if second else "15%") if "15%" in text else '{"can_answer":false}'
    return done("Northmere" if second else "15%")


sent: list[tuple[int, int]] = []


async def fake_generate(llm, prompt, session, max_tokens_override=None):
    text = prompt.messages[0]["content"]
    assert [chr(i) for i in prompt.token_ids] == list(text)
    sent.append((len(prompt.token_ids), max_tokens_override))
    return LLMCall(
        prompt=prompt,
        output=LLMOutput(content=answer(text)),
        prompt_length_tokens=len(prompt.token_ids),
        output_length_tokens=7,
    )


def fake_text(llm, call):
    return TrainingText(text=call.output.content, n_predicted=1, metadata={"exact_versions": False})


@pytest.fixture
async def run(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "llm_async_generate", fake_generate)
    monkeypatch.setattr(rollouts, "make_training_text", fake_text)
    monkeypatch.setattr(runtime, "HEALTH_RETRIES", Retries(backoff_s=(0.0,), jitter=0.0))
    sent.clear()
    store = Store(
        {"DR90001": [LocalDocument("DR90001", "files_a/audit.md", "In the audit 15% of stores passed.")]},
        [WebDocument("7", "u", "Region Northmere reports 15% coverage.")],
    )
    service = RetrievalService(fingerprint="f1", queue=SearchQueue(2, 64), threads=2)
    service.store = store
    server = TestServer(build_app(service))
    await server.start_server()

    async def rollout(chain=TWO_HOPS, **settings):
        block = {"prompt_set": "compact", "max_candidate_cards": 6} | settings
        block.setdefault("helper_service_url", str(server.make_url("")))
        cfg = OmegaConf.create({"output_dir": str(tmp_path / "run"), "privacy_hopqa": block})
        problem = {"id": 0, "domain": "privacy_hopqa", "dataset": "toy", "chain": chain}
        async with aiohttp.ClientSession() as session:
            result = await rollouts.generate_privacy_hopqa_rollout(cfg, FakeLLM(), problem, session)
        return result, tmp_path / "run"

    yield rollout
    await server.close()


async def test_a_rollout_returns_texts_metrics_and_leaves_its_records(run):
    result, output = await run(training_reward_mode="hop_step_situational", trace_fraction=1.0)
    assert result.failed is None
    assert result.metrics.success
    assert [text.reward for text in result.training_texts] == [1.25, 1.25]
    first = result.training_texts[0]
    assert first.situation == "privacy_hopqa:hop:1:stage:plan:gold_not_yet_retrieved"
    assert first.metadata["exact_versions"] is False
    assert first.metadata["gold_retrieved"]
    assert (result.domain, result.dataset_name) == ("privacy_hopqa", "toy")
    log = read_audit_log(audit_files(output))
    assert [r.queries for r in log.rollouts] == [["region coverage"]]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (output / "traces").iterdir())
    (trace,) = [json.loads(x) for p in (output / "traces").iterdir() for x in p.read_text().splitlines()]
    assert trace["calls"][0]["prompt"].startswith("plan")


async def test_the_scheduler_names_the_rollout_in_the_audit_log(run):
    token = ROLLOUT_ORIGIN.set(RolloutOrigin("group", 3, 17, True))
    try:
        _, output = await run()
    finally:
        ROLLOUT_ORIGIN.reset(token)
    (line,) = [line for line in audit_lines(output) if line.get("event") == "rollout"]
    assert line["rollout_id"].startswith("group/3#")
    assert (line["group_id"], line["model_version"], line["training"]) == ("group", 17, True)


def audit_lines(output):
    return [json.loads(x) for p in (output / "audit").iterdir() for x in p.read_text().splitlines()]


async def test_the_budget_counts_the_exact_ids(run):
    await run(
        generation_context_limit_tokens=400, generation_context_margin_tokens=20, hop_plan_max_tokens=300
    )
    tokens, budget = sent[0]
    assert budget == min(300, 400 - tokens - 20)


async def test_a_prompt_without_room_is_an_error_without_a_call(run):
    result, _ = await run(generation_context_limit_tokens=50, generation_context_margin_tokens=20)
    assert not sent
    assert result.failed is None
    assert result.training_texts == []
    assert result.metrics.errors_context_overflow == 1
    assert result.metrics.llm_calls == 0


async def test_a_dead_service_is_a_failed_rollout_without_texts(run, monkeypatch):
    async def down(*args, **kwargs):
        raise TransportFailure("down")

    monkeypatch.setattr(rollouts.HttpSearcher, "search", down)
    result, _ = await run()
    assert result.failed == "transport: down"
    assert result.training_texts == []
    assert result.metrics is None


async def test_a_missing_privacy_score_is_a_failed_rollout(run, monkeypatch):
    async def short(self, path, body):
        return {"scores": []}

    plain_post = rollouts.JsonClient.post

    async def post(self, path, body):
        return await (short if path == "/score" else plain_post)(self, path, body)

    monkeypatch.setattr(rollouts.JsonClient, "post", post)
    result, _ = await run(privacy_reward_service_url="http://127.0.0.1:9")
    assert result.failed.startswith("privacy_score: the scorer returned 0 scores")


@pytest.mark.parametrize(
    "scores",
    [
        [],
        [{"id": "other", "prob_yes": 0.1}],
        [{"id": "log0"}],
        [{"id": "log0", "prob_yes": float("nan")}],
        [{"id": "log0", "prob_yes": 1.5}],
        [{"id": "log0", "prob_yes": "0.5"}],
        [{"id": "log0", "prob_yes": 0.1}, {"id": "log1", "prob_yes": 0.1}],
    ],
)
async def test_an_impossible_score_fails_the_rollout_and_nothing_is_trained(run, monkeypatch, scores):
    plain_post = rollouts.JsonClient.post

    async def post(self, path, body):
        return {"scores": scores} if path == "/score" else await plain_post(self, path, body)

    monkeypatch.setattr(rollouts.JsonClient, "post", post)
    result, _ = await run(privacy_reward_service_url="http://127.0.0.1:9")
    assert result.failed.startswith("privacy_score: ")
    assert (result.training_texts, result.metrics) == ([], None)


async def test_by_default_a_rollout_leaves_nothing_but_its_lines_in_the_audit_log(run):
    for _ in range(3):
        _, output = await run()
    files = [path for path in output.rglob("*") if path.is_file()]
    assert [path.parent.name for path in files] == ["audit"]


async def test_a_web_request_that_cannot_be_logged_is_not_sent(run, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "audit").write_text("a file where the folder should be")
    result, _ = await run()
    assert result.failed.startswith("audit: the audit log")
    assert sent == []


async def test_the_deadline_of_a_rollout_fails_it(run, monkeypatch):
    async def stuck(*args, **kwargs):
        import asyncio

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
    token = ROLLOUT_ORIGIN.set(RolloutOrigin("group", 0, 1, training=False))
    try:
        with pytest.raises(ValueError, match="refused"):
            await run(**switch)
    finally:
        ROLLOUT_ORIGIN.reset(token)


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
