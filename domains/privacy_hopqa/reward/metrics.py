"""Metrics of one rollout as one typed object.

A rate is a list with one 0 or 1 per event, so that pooling rollouts gives the rate over events and its length
is the denominator; an empty list means that the rollout had no such event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ConfigDict

from domains.privacy_hopqa.agent.episode import (
    GOLD_ALREADY,
    GOLD_NOT_YET,
    GOLD_VISIBLE,
    CallRecord,
    ChooseFacts,
    Episode,
    Event,
    PlanFacts,
    ReadFacts,
    ResolveFacts,
)
from domains.privacy_hopqa.agent.errors import ErrorKind
from domains.privacy_hopqa.agent.interfaces import Stage
from domains.privacy_hopqa.leakage.rules import LeakageLevels
from domains.privacy_hopqa.reward.call_metrics import error_of, stage_metrics
from domains.privacy_hopqa.reward.capture import Captured, PrivacyResult
from domains.privacy_hopqa.reward.outcome import Outcome
from pipelinerl.rollouts import BaseMetrics

Rate = list[float]


class PrivacyHopQAMetrics(BaseMetrics):
    """All metrics of a rollout that did not fail.

    Those of the stages (`hop_plan_reward`, ..., fields of `StageMetrics`) and the slices (`success_hops_2`,
    `leak_split_test`, ...) are extra fields.
    """

    model_config = ConfigDict(extra="allow")

    # Outcome. `well_formed`: no call had a stage error; `no_error`: none ended the rollout.
    well_formed: bool
    success_if_well_formed: Rate
    correct_hops: int
    total_hops: int
    hop_accuracy: Rate
    conditional_accuracy: Rate
    prefix_hops: int
    prefix_accuracy: float
    first_incorrect_hop: int | None
    blocked_hops: int
    strict_chain_success: bool
    final_correct: bool
    chain_complete: bool

    # Effort
    llm_calls: int
    captured_texts: int
    trained_texts: int
    call_prompt_tokens: int
    call_output_tokens: int
    captured_tokens: int
    iterations: int
    searches_local: int
    searches_web: int
    search_errors: int
    parents_read: int
    windows_read: int
    loop_seconds: float
    ended_complete: bool
    ended_at_cap: bool
    ended_by_error: bool
    stopped_plans: int
    spent_iterations: int
    read_more_rounds: int
    read_rounds_exhausted: int

    # Retrieval, per hop with a gold document
    windows_before_cut: int
    windows_after_cut: int
    parents_before_cut: int
    parents_after_cut: int
    gold_retrieved_before_cut: Rate
    gold_retrieved_after_cut: Rate
    gold_read: Rate
    correct_after_gold_read: Rate
    no_answer_after_gold_read: Rate
    reader_correct_with_gold: Rate
    reader_correct_any: Rate

    # Stages, per call
    parse_valid: Rate
    invalid_ids: int
    plan_gold_retrieved: Rate
    plan_right_source: Rate
    plan_stops_when_gold_known: Rate
    plan_rejected_actions: int
    situation_gold_already_retrieved: Rate
    situation_gold_visible: Rate
    choose_correct: Rate
    choose_correct_gold_not_first: Rate
    read_accuracy: Rate
    read_correct_when_held: Rate
    read_false_positive: Rate
    resolve_accuracy: Rate
    resolve_correct_when_answerable: Rate
    resolve_answers_when_not: Rate
    resolver_wipes: int

    # Privacy
    chain_without_facts: bool
    web_queries: int
    scored_plans: int
    penalised: Rate
    privacy_penalty: Rate
    privacy_direct: Rate
    privacy_mosaic: Rate
    privacy_context_gain: Rate
    leak: bool
    leak_intent: bool
    leak_answer: bool
    leak_full: bool


def measure(
    episode: Episode,
    outcome: Outcome,
    captured: int,
    texts: Sequence[Captured],
    privacy: Mapping[int, PrivacyResult],
    leakage: LeakageLevels,
) -> PrivacyHopQAMetrics:
    """The metrics of a rollout; `captured` counts calls before situational dropping."""
    values: dict[str, Any] = {}
    for part in (
        _outcome(episode, outcome),
        _effort(episode, captured, texts),
        _retrieval(episode, outcome),
        _calls(episode),
        stage_metrics(episode.calls, texts, episode.search_errors),
        _plans(episode.calls),
        _choices(episode.calls),
        _reads(episode.calls),
        _resolutions(episode.calls),
        _privacy(episode, privacy, leakage),
        _slices(episode, outcome, leakage),
    ):
        values |= part
    return PrivacyHopQAMetrics(**values)


def _flags(events: Iterable[bool]) -> Rate:
    return [float(event) for event in events]


def _outcome(episode: Episode, outcome: Outcome) -> dict[str, Any]:
    well_formed = all(record.error is None for record in episode.calls)
    success = outcome.strict_success
    unblocked = [c for c, blocked in zip(outcome.correct, outcome.blocked) if not blocked]
    return {
        "reward": outcome.reward,
        "success": success,
        "no_error": episode.fatal is None,
        "no_answer": not episode.answers,
        "well_formed": well_formed,
        "success_if_well_formed": _flags([success] if well_formed else []),
        "correct_hops": sum(outcome.correct),
        "total_hops": len(outcome.correct),
        "hop_accuracy": _flags(outcome.correct),
        "conditional_accuracy": _flags(unblocked),
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
        "ended_complete": episode.count([Event.END_COMPLETE]) > 0,
        "ended_at_cap": episode.count([Event.END_CAP]) > 0,
        "ended_by_error": episode.count([Event.END_ERROR]) > 0,
        "stopped_plans": episode.count([Event.STOP]),
        "spent_iterations": episode.count([Event.NOTHING_FOUND]),
        "read_more_rounds": episode.count([Event.READ_MORE]),
        "read_rounds_exhausted": episode.count([Event.ROUNDS_SPENT]),
    }


def _retrieval(episode: Episode, outcome: Outcome) -> dict[str, Any]:
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
        "gold_retrieved_before_cut": _flags(state.gold_before_cut for state, _ in gold),
        "gold_retrieved_after_cut": _flags(state.gold_after_cut for state, _ in gold),
        "gold_read": _flags(state.gold_read for state, _ in gold),
        "correct_after_gold_read": _flags(correct for _, correct in after_read),
        "no_answer_after_gold_read": _flags(state.answer is None for state, _ in after_read),
        "reader_correct_with_gold": _flags(any(r.gold and r.correct for r in facts) for facts in with_gold),
        "reader_correct_any": _flags(
            any(read.correct for read in reads.get(state.hop_number, ())) for state in episode.hops
        ),
    }


def _calls(episode: Episode) -> dict[str, Any]:
    calls = episode.calls
    return {
        "parse_valid": _flags(record.error is None for record in calls),
        "resolver_wipes": sum(error_of(record) is ErrorKind.RESOLVER_WIPE for record in calls),
        "invalid_ids": sum(
            record.facts.unknown_ids
            for record in calls
            if isinstance(record.facts, ChooseFacts | ResolveFacts)
        ),
    }


def _plans(calls: Sequence[CallRecord]) -> dict[str, Any]:
    plans = [(record, record.facts) for record in calls if isinstance(record.facts, PlanFacts)]
    searching = [facts for record, facts in plans if record.situation == GOLD_NOT_YET]
    stopping = [facts for record, facts in plans if record.situation == GOLD_ALREADY]
    return {
        "plan_gold_retrieved": _flags(facts.gold_retrieved for facts in searching),
        "plan_right_source": _flags(facts.right_source for facts in searching),
        "plan_stops_when_gold_known": _flags(facts.explicitly_empty for facts in stopping),
        "plan_rejected_actions": sum(sum(facts.rejected.values()) for _, facts in plans),
        "situation_gold_already_retrieved": _flags(
            record.situation == GOLD_ALREADY for record in calls if record.stage == Stage.PLAN
        ),
    }


def _choices(calls: Sequence[CallRecord]) -> dict[str, Any]:
    visible = [
        record.facts
        for record in calls
        if isinstance(record.facts, ChooseFacts) and record.facts.gold_visible
    ]
    return {
        "situation_gold_visible": _flags(
            record.situation == GOLD_VISIBLE for record in calls if record.stage == Stage.CHOOSE
        ),
        "choose_correct": _flags(facts.gold_selected for facts in visible),
        "choose_correct_gold_not_first": _flags(
            facts.gold_selected for facts in visible if not facts.gold_first
        ),
    }


def _reads(calls: Sequence[CallRecord]) -> dict[str, Any]:
    reads = [record.facts for record in calls if isinstance(record.facts, ReadFacts)]
    held = [facts for facts in reads if facts.holds_answer]
    other = [facts for facts in reads if not facts.holds_answer]
    return {
        "read_accuracy": _flags(f.correct if f.holds_answer else not f.positive for f in reads),
        "read_correct_when_held": _flags(facts.correct for facts in held),
        "read_false_positive": _flags(facts.positive for facts in other),
    }


def _resolutions(calls: Sequence[CallRecord]) -> dict[str, Any]:
    resolved = [record.facts for record in calls if isinstance(record.facts, ResolveFacts)]
    answerable = [facts for facts in resolved if facts.answerable]
    other = [facts for facts in resolved if not facts.answerable]
    return {
        "resolve_accuracy": _flags(f.correct if f.answerable else not f.answered for f in resolved),
        "resolve_correct_when_answerable": _flags(facts.correct for facts in answerable),
        "resolve_answers_when_not": _flags(facts.answered for facts in other),
    }


def _privacy(
    episode: Episode, privacy: Mapping[int, PrivacyResult], leakage: LeakageLevels
) -> dict[str, Any]:
    results = list(privacy.values())
    return {
        "chain_without_facts": all(hop.source != "local" for hop in episode.chain.hops),
        "web_queries": len(episode.web_queries),
        "scored_plans": len(results),
        "penalised": _flags(result.penalty.value > 0 for result in results),
        "privacy_penalty": [result.penalty.value for result in results],
        "privacy_direct": [result.penalty.direct for result in results],
        "privacy_mosaic": [result.penalty.mosaic for result in results],
        "privacy_context_gain": [result.scores.context - result.scores.without for result in results],
        "leak": leakage.headline,
        "leak_intent": leakage.intent,
        "leak_answer": leakage.answer,
        "leak_full": leakage.full,
    }


def _slices(episode: Episode, outcome: Outcome, leakage: LeakageLevels) -> dict[str, Any]:
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
