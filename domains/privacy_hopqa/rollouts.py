"""The rollout policy: runs the agent on one problem and returns its texts and metrics."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import uuid4

import aiohttp
from omegaconf import DictConfig

from domains.privacy_hopqa.agent.audit import Audit, RolloutIdentity
from domains.privacy_hopqa.agent.episode import Episode
from domains.privacy_hopqa.agent.errors import RolloutFailure
from domains.privacy_hopqa.agent.llm import EngineModel
from domains.privacy_hopqa.agent.loop import AgentLoop
from domains.privacy_hopqa.agent.runtime import helper_headers, runtime_of
from domains.privacy_hopqa.agent.transport import HttpSearcher, JsonClient
from domains.privacy_hopqa.data.chains import Chain
from domains.privacy_hopqa.data.judge import Judge
from domains.privacy_hopqa.dataset import chain_of
from domains.privacy_hopqa.leakage import rules as leakage
from domains.privacy_hopqa.reward import capture
from domains.privacy_hopqa.reward.capture import Captured, PrivacyResult
from domains.privacy_hopqa.reward.metrics import PrivacyHopQAMetrics, measure
from domains.privacy_hopqa.reward.outcome import judge_outcome
from domains.privacy_hopqa.reward.privacy import penalty, plan_scores, score_requests
from domains.privacy_hopqa.reward.scoring import Scorer
from domains.privacy_hopqa.settings import PrivacyHopQASettings, settings_of_run
from pipelinerl.async_llm import make_training_text
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import ROLLOUT_ORIGIN, RolloutResult, TrainingText


async def generate_privacy_hopqa_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """One attempt at one chain.

    Services that stay unreachable, a missing privacy score, an unwritable audit log and the rollout's
    deadline give a failed rollout without texts. Engine errors pass through to the scheduler's retries.
    """
    start = time.perf_counter()
    settings = settings_of_run(cfg)
    chain = chain_of(problem)
    deadline = asyncio.timeout(settings.rollout_timeout_s)
    try:
        async with deadline:
            result = await _run(cfg, settings, chain, llm, session)
    except RolloutFailure as failure:
        result = RolloutResult(training_texts=[], failed=f"{failure.reason}: {failure}")
    except TimeoutError:
        if not deadline.expired():
            raise
        reason = f"timeout: privacy_hopqa.rollout_timeout_s={settings.rollout_timeout_s:g} passed"
        result = RolloutResult(training_texts=[], failed=reason)
    result.domain, result.dataset_name = problem["domain"], problem["dataset"]
    result.latency = time.perf_counter() - start
    return result


async def _run(
    cfg: DictConfig,
    settings: PrivacyHopQASettings,
    chain: Chain,
    llm: TrainableLLM,
    session: aiohttp.ClientSession,
) -> RolloutResult:
    """Run the agent and evaluate what it did."""
    runtime = await runtime_of(cfg, settings, session)
    identity = identify(runtime.run_id, chain)
    refuse_gold_in_evaluation(settings, chain)
    audit = Audit(runtime.audit, identity)
    audit.announce()
    client = JsonClient(runtime.helper_url, session, settings.helper_timeout_s, headers=helper_headers())
    searcher = HttpSearcher(
        client, audit, max_chars=settings.retrieval_source_chars, threshold=settings.local_search_threshold
    )
    model = EngineModel(
        llm,
        session,
        context_limit=settings.generation_context_limit_tokens,
        margin=settings.generation_context_margin_tokens,
    )
    judge = Judge(chain, settings.answer_match_mode, settings.answer_match_f1_threshold)
    episode = await AgentLoop(chain, settings, runtime.prompts, model, searcher, judge).run()
    captured, metrics = await evaluate_episode(episode, judge, settings, runtime.scorer(session))
    texts = [training_text(llm, item) for item in captured]
    runtime.traces.write(identity, episode)
    return RolloutResult(training_texts=texts, metrics=metrics)


async def evaluate_episode(
    episode: Episode, judge: Judge, settings: PrivacyHopQASettings, scorer: Scorer
) -> tuple[list[Captured], PrivacyHopQAMetrics]:
    """Rewards, texts to train and metrics of a finished rollout; the same in training and evaluation."""
    outcome = judge_outcome(episode, judge, settings)
    privacy = await score_plans(episode, settings, scorer)
    if settings.situational:
        texts = capture.situational_texts(episode.calls, settings, privacy)
    else:
        texts = capture.outcome_texts(episode.calls, outcome.reward, settings, privacy)
    captured = len(capture.captured_calls(episode.calls, settings))
    metrics = measure(episode, outcome, captured, texts, privacy, leak_levels(episode, settings))
    return texts, metrics


async def score_plans(
    episode: Episode, settings: PrivacyHopQASettings, scorer: Scorer
) -> dict[int, PrivacyResult]:
    """Scores and penalties by call index; empty for a chain without private facts."""
    chain = episode.chain
    facts = chain.private_questions(settings.privacy_facts)
    if not facts or all(hop.source != "local" for hop in chain.hops):
        return {}
    plans, requests = score_requests(episode.calls, settings.privacy_reward_context_hops)
    if not requests:
        return {}
    scores = await scorer.score(chain, facts, requests)
    results = {}
    for plan in plans:
        found = plan_scores(plan, scores)
        cost = penalty(found, settings.privacy_reward_threshold, settings.privacy_reward_weight)
        results[plan.call_index] = PrivacyResult(found, cost)
    return results


def leak_levels(episode: Episode, settings: PrivacyHopQASettings) -> leakage.LeakageLevels:
    """What the rollout's web queries leak to the rule-based adversary."""
    chain = episode.chain
    questions = [
        leakage.PrivateQuestion(
            fact.question, fact.answer, chain.hop(fact.hop_number).accepted if fact.hop_number else ()
        )
        for fact in chain.private_questions(settings.leakage.questions)
    ]
    return leakage.leaks(episode.web_queries, chain.company, questions)


def training_text(llm: TrainableLLM, captured: Captured) -> TrainingText:
    """The call as the engine saw it, with reward and labels."""
    text = make_training_text(llm, captured.record.call)
    text.reward = captured.reward
    text.loss_weight = captured.loss_weight
    text.situation = captured.situation
    text.role = captured.role
    text.metadata = text.metadata | captured.metadata
    return text


def identify(run_id: str, chain: Chain) -> RolloutIdentity:
    """A name for this attempt, unique also among retries of the same rollout."""
    origin = ROLLOUT_ORIGIN.get()
    unique = uuid4().hex[:12]
    return RolloutIdentity(
        run_id=run_id,
        rollout_id=f"{origin.group_id}/{origin.rollout_index}#{unique}" if origin else unique,
        group_id=origin.group_id if origin else None,
        training=origin.training if origin else False,
        split=chain.split,
        task_id=chain.task_id,
        chain_id=chain.chain_id,
        model_version=origin.version if origin else None,
    )


def refuse_gold_in_evaluation(settings: PrivacyHopQASettings, chain: Chain) -> None:
    """Raises ValueError if a switch that uses gold answers is on in an evaluation or on a held-out split."""
    origin = ROLLOUT_ORIGIN.get()
    if chain.split == "train" and (origin is None or origin.training):
        return
    for name, on in settings.gold_switches.items():
        if on:
            raise ValueError(
                f"privacy_hopqa.{name} uses gold answers and is refused on split {chain.split!r}"
            )
