"""Metrics of the calls of one rollout: per stage, and per kind of decision. `measure` calls it.

Flat names: those of a stage begin with its name (`hop_plan_calls`, `doc_read_errors_parse`, ...).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from domains.privacy_hopqa.agent.episode import (
    GOLD_ALREADY,
    GOLD_NOT_YET,
    GOLD_VISIBLE,
    CallRecord,
    ChooseFacts,
    PlanFacts,
    ReadFacts,
    ResolveFacts,
)
from domains.privacy_hopqa.agent.errors import ErrorKind
from domains.privacy_hopqa.agent.interfaces import Stage
from domains.privacy_hopqa.reward.capture import Captured

Facts = TypeVar("Facts")
Flags = list[float]
"""A rate: 1.0 or 0.0 per event."""
_REPLY_ERRORS = (
    ErrorKind.PARSE,
    ErrorKind.WRONG_TYPE,
    ErrorKind.CONTEXT_OVERFLOW,
    ErrorKind.INVALID_IDS,
    ErrorKind.RESOLVER_WIPE,
)


def flags(events: Iterable[bool]) -> Flags:
    """The events as a rate."""
    return [float(event) for event in events]


def call_metrics(
    calls: Sequence[CallRecord], texts: Sequence[Captured], search_errors: int
) -> dict[str, Any]:
    """All by name. `errors` of a stage counts unusable answers, `errors_<kind>` also recovered ones."""
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
        "errors_search_failed": search_errors,
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
