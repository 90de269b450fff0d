"""Metrics of one rollout as one typed object; the evaluation of a rollout calls `measure`.

A rate is a list with one 0 or 1 per event, so that pooling rollouts gives the rate over events and its length
is the denominator; an empty list means that the rollout had no such event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ConfigDict

from domains.privacy_hopqa.agent.episode import Episode, Event, ReadFacts
from domains.privacy_hopqa.agent.errors import ErrorKind
from domains.privacy_hopqa.leakage.rules import LeakageLevels
from domains.privacy_hopqa.reward.call_metrics import call_metrics, flags
from domains.privacy_hopqa.reward.capture import Captured
from domains.privacy_hopqa.reward.privacy import PlanPrivacy
from domains.privacy_hopqa.reward.rewards import ChainOutcome
from pipelinerl.rollouts import BaseMetrics


class PrivacyHopQAMetrics(BaseMetrics):
    """All metrics of a rollout that did not fail, under the names that `measure` gives them.

    Those of the stages (`hop_plan_reward`, ..., see `call_metrics`) and the slices (`success_hops_2`,
    `leak_split_test`, ...) have names that depend on stages and data.
    """

    model_config = ConfigDict(extra="allow")


def measure(
    episode: Episode,
    outcome: ChainOutcome,
    captured: int,
    texts: Sequence[Captured],
    privacy: Mapping[int, PlanPrivacy],
    leakage: LeakageLevels,
) -> PrivacyHopQAMetrics:
    """The metrics of a rollout; `captured` counts calls before situational dropping."""
    values: dict[str, Any] = {}
    for part in (
        _outcome(episode, outcome),
        _effort(episode, captured, texts),
        _retrieval(episode, outcome),
        call_metrics(episode.calls, texts, episode.search_errors),
        _privacy(episode, privacy, leakage),
        _slices(episode, outcome, leakage),
    ):
        values |= part
    return PrivacyHopQAMetrics(**values)


def _outcome(episode: Episode, outcome: ChainOutcome) -> dict[str, Any]:
    """`well_formed`: no call had a stage error; `no_error`: none ended the rollout."""
    well_formed = all(record.error is None for record in episode.calls)
    success = outcome.strict_success
    unblocked = [c for c, blocked in zip(outcome.correct, outcome.blocked) if not blocked]
    return {
        "reward": outcome.reward,
        "success": success,
        "no_error": episode.fatal is None,
        "no_answer": not episode.answers,
        "well_formed": well_formed,
        "success_if_well_formed": flags([success] if well_formed else []),
        "correct_hops": sum(outcome.correct),
        "total_hops": len(outcome.correct),
        "hop_accuracy": flags(outcome.correct),
        "conditional_accuracy": flags(unblocked),
        "prefix_hops": outcome.prefix,
        "prefix_accuracy": outcome.prefix / len(outcome.correct),
        "first_incorrect_hop": outcome.first_incorrect_hop,
        "blocked_hops": sum(outcome.blocked),
        "strict_chain_success": success,
        "final_correct": outcome.final_correct,
        "chain_complete": len(episode.answers) == len(episode.hops),
    }


def _effort(episode: Episode, captured: int, texts: Sequence[Captured]) -> dict[str, Any]:
    calls = [record for record in episode.calls if record.error is not ErrorKind.CONTEXT_OVERFLOW]
    return {
        "llm_calls": len(calls),
        "captured_texts": captured,
        "trained_texts": sum(text.loss_weight > 0 for text in texts),
        "call_prompt_tokens": sum(record.prompt_tokens for record in calls),
        "call_output_tokens": sum(record.output_tokens for record in calls),
        "captured_tokens": sum(t.record.prompt_tokens + t.record.output_tokens for t in texts),
        "iterations": episode.iterations,
        "searches_local": episode.searches["local"],
        "searches_web": episode.searches["web"],
        "search_errors": episode.search_errors,
        "parents_read": episode.parents_read,
        "windows_read": episode.windows_read,
        "loop_seconds": episode.duration_s,
        "ended_complete": episode.count(Event.END_COMPLETE) > 0,
        "ended_at_cap": episode.count(Event.END_CAP) > 0,
        "ended_by_error": episode.count(Event.END_ERROR) > 0,
        "stopped_plans": episode.count(Event.STOP),
        "spent_iterations": episode.count(Event.NOTHING_FOUND),
        "read_more_rounds": episode.count(Event.READ_MORE),
        "read_rounds_exhausted": episode.count(Event.ROUNDS_SPENT),
    }


def _retrieval(episode: Episode, outcome: ChainOutcome) -> dict[str, Any]:
    """What reached the pool, and per hop with a gold document what became of it."""
    gold = [
        (state, correct)
        for state, hop, correct in zip(episode.hops, episode.chain.hops, outcome.correct)
        if hop.gold_values
    ]
    after_read = [(state, correct) for state, correct in gold if state.gold_read]
    reads: dict[int, list[ReadFacts]] = {}
    for record in episode.calls:
        if isinstance(record.facts, ReadFacts):
            reads.setdefault(record.hop_number, []).append(record.facts)
    with_gold = [facts for facts in reads.values() if any(read.gold for read in facts)]
    return {
        "windows_before_cut": episode.windows_before_cut,
        "windows_after_cut": episode.windows_after_cut,
        "parents_before_cut": episode.parents_before_cut,
        "parents_after_cut": episode.parents_after_cut,
        "gold_retrieved_before_cut": flags(state.gold_before_cut for state, _ in gold),
        "gold_retrieved_after_cut": flags(state.gold_after_cut for state, _ in gold),
        "gold_read": flags(state.gold_read for state, _ in gold),
        "correct_after_gold_read": flags(correct for _, correct in after_read),
        "no_answer_after_gold_read": flags(state.answer is None for state, _ in after_read),
        "reader_correct_with_gold": flags(any(r.gold and r.correct for r in facts) for facts in with_gold),
        "reader_correct_any": flags(
            any(read.correct for read in reads.get(state.hop_number, ())) for state in episode.hops
        ),
    }


def _privacy(episode: Episode, privacy: Mapping[int, PlanPrivacy], leakage: LeakageLevels) -> dict[str, Any]:
    results = list(privacy.values())
    return {
        "chain_without_facts": all(hop.source != "local" for hop in episode.chain.hops),
        "web_queries": len(episode.web_queries),
        "scored_plans": len(results),
        "penalised": flags(result.penalty > 0 for result in results),
        "privacy_penalty": [result.penalty for result in results],
        "privacy_direct": [result.direct for result in results],
        "privacy_mosaic": [result.mosaic for result in results],
        "privacy_context_gain": [result.p_context - result.p_without for result in results],
        "leak": leakage.headline,
        "leak_intent": leakage.intent,
        "leak_answer": leakage.answer,
        "leak_full": leakage.full,
    }


def _slices(episode: Episode, outcome: ChainOutcome, leakage: LeakageLevels) -> dict[str, Any]:
    """Strict success and leakage by chain length, pattern, task (company) and split."""
    chain = episode.chain
    names = (
        f"hops_{len(chain.hops)}",
        f"pattern_{chain.pattern}",
        f"task_{chain.task_id}",
        f"split_{chain.split}",
    )
    success, leak = float(outcome.strict_success), float(leakage.headline)
    return {f"success_{name}": success for name in names} | {f"leak_{name}": leak for name in names}
