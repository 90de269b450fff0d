"""Metrics of one rollout as one typed object; the evaluation of a rollout calls `measure`.

A rate is a list with one 0 or 1 per event, so that pooling rollouts gives the rate over events and its length
is the denominator; an empty list means that the rollout had no such event. Names of a stage begin with its
name (`hop_plan_calls`, `doc_read_errors_parse`, ...).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

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
from domains.privacy_hopqa.reward.capture import Captured
from domains.privacy_hopqa.reward.privacy import PlanPrivacy
from domains.privacy_hopqa.reward.rewards import ChainOutcome
from pipelinerl.rollouts import BaseMetrics

Facts = TypeVar("Facts")
_REPLY_ERRORS = (
    ErrorKind.PARSE,
    ErrorKind.WRONG_TYPE,
    ErrorKind.CONTEXT_OVERFLOW,
    ErrorKind.INVALID_IDS,
    ErrorKind.RESOLVER_WIPE,
)


class PrivacyHopQAMetrics(BaseMetrics):
    """All metrics of a rollout that did not fail, under the names that `measure` gives them.

    Those of the stages and the slices (`success_hops_2`, `leak_split_test`, ...) depend on stages and data.
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
    return PrivacyHopQAMetrics(
        **_outcome(episode, outcome),
        **_effort(episode, captured, texts),
        **_retrieval(episode, outcome),
        **_calls(episode.calls, texts),
        **_privacy(episode, privacy, leakage),
        **_slices(episode, outcome, leakage),
    )


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
        **asdict(episode.counts),
        "errors_search_failed": episode.counts.search_errors,
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
    """Per hop with a gold document, what became of it."""
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


def _calls(calls: Sequence[CallRecord], texts: Sequence[Captured]) -> dict[str, Any]:
    """Per stage and per kind of decision.

    `errors` of a stage counts unusable answers, `errors_<kind>` also recovered ones.
    """
    kinds = Counter(kind for record in calls if (kind := _error_of(record)) is not None)
    by_stage = {
        f"{stage}_{name}": value
        for stage in Stage
        for name, value in _stage(
            [record for record in calls if record.stage == stage],
            [text for text in texts if text.record.stage == stage],
        ).items()
    }
    return {
        "parse_valid": flags(record.error is None for record in calls),
        "resolver_wipes": kinds[ErrorKind.RESOLVER_WIPE],
        "invalid_ids": _unknown_ids(calls),
        **by_stage,
        **{f"errors_{kind}": kinds[kind] for kind in _REPLY_ERRORS},
        **_plans(calls),
        **_choices(calls),
        **_reads(calls),
        **_resolutions(calls),
    }


def _stage(calls: Sequence[CallRecord], texts: Sequence[Captured]) -> dict[str, int | list[float]]:
    """Counts of one stage; lists have one entry per call or text."""
    paths = Counter(record.json_path for record in calls)
    kinds = Counter(kind for record in calls if (kind := _error_of(record)) is not None)
    return {
        "calls": len(calls),
        "errors": sum(record.error is not None for record in calls),
        **{f"errors_{kind}": kinds[kind] for kind in _REPLY_ERRORS},
        "valid": flags(record.error is None for record in calls),
        "latency_s": [record.latency_s for record in calls],
        "texts": len(texts),
        "reward": [text.reward for text in texts],
        **{f"json_{path}": paths[path] for path in ("clean", "fenced", "embedded")},
        "unknown_ids": _unknown_ids(calls),
    }


def _unknown_ids(calls: Sequence[CallRecord]) -> int:
    """Names in answers that named nothing on offer."""
    facts = (record.facts for record in calls)
    return sum(fact.unknown_ids for fact in facts if isinstance(fact, ChooseFacts | ResolveFacts))


def _error_of(record: CallRecord) -> ErrorKind | None:
    """What was wrong with the answer of a call, whether it was fatal or recovered from."""
    if record.error is not None:
        return record.error
    return record.facts.error if isinstance(record.facts, ResolveFacts) else None


def _facts(calls: Sequence[CallRecord], kind: type[Facts]) -> list[Facts]:
    """The decisions of one kind of call, where its answer could be used."""
    return [record.facts for record in calls if isinstance(record.facts, kind)]


def _plans(calls: Sequence[CallRecord]) -> dict[str, Any]:
    plans = [record for record in calls if record.stage == Stage.PLAN]
    searching = _facts([record for record in plans if record.situation == GOLD_NOT_YET], PlanFacts)
    stopping = _facts([record for record in plans if record.situation == GOLD_ALREADY], PlanFacts)
    return {
        "plan_gold_retrieved": flags(facts.gold_retrieved for facts in searching),
        "plan_right_source": flags(facts.right_source for facts in searching),
        "plan_stops_when_gold_known": flags(facts.explicitly_empty for facts in stopping),
        "plan_rejected_actions": sum(sum(f.rejected.values()) for f in _facts(plans, PlanFacts)),
        "situation_gold_already_retrieved": flags(record.situation == GOLD_ALREADY for record in plans),
    }


def _choices(calls: Sequence[CallRecord]) -> dict[str, Any]:
    choices = [record for record in calls if record.stage == Stage.CHOOSE]
    visible = [facts for facts in _facts(choices, ChooseFacts) if facts.gold_visible]
    return {
        "situation_gold_visible": flags(record.situation == GOLD_VISIBLE for record in choices),
        "choose_correct": flags(facts.gold_selected for facts in visible),
        "choose_correct_gold_not_first": flags(f.gold_selected for f in visible if not f.gold_first),
    }


def _reads(calls: Sequence[CallRecord]) -> dict[str, Any]:
    reads = _facts(calls, ReadFacts)
    return {
        "read_accuracy": flags(f.correct if f.holds_answer else not f.positive for f in reads),
        "read_correct_when_held": flags(f.correct for f in reads if f.holds_answer),
        "read_false_positive": flags(f.positive for f in reads if not f.holds_answer),
    }


def _resolutions(calls: Sequence[CallRecord]) -> dict[str, Any]:
    resolved = _facts(calls, ResolveFacts)
    return {
        "resolve_accuracy": flags(f.correct if f.answerable else not f.answered for f in resolved),
        "resolve_correct_when_answerable": flags(f.correct for f in resolved if f.answerable),
        "resolve_answers_when_not": flags(f.answered for f in resolved if not f.answerable),
    }


def flags(events: Iterable[bool]) -> list[float]:
    """A rate: 1.0 or 0.0 per event."""
    return [float(event) for event in events]
