"""Metrics of each stage of one rollout: calls, errors by kind, texts, rewards, latency, extraction paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel

from domains.privacy_hopqa.agent.episode import CallRecord, ChooseFacts, ResolveFacts
from domains.privacy_hopqa.agent.errors import ErrorKind
from domains.privacy_hopqa.agent.interfaces import Stage
from domains.privacy_hopqa.reward.capture import Captured


class StageMetrics(BaseModel):
    """One stage; its fields are metrics named `<stage>_<field>`. Lists have one entry per call or text."""

    calls: int
    errors: int
    errors_parse: int
    errors_wrong_type: int
    errors_context_overflow: int
    errors_invalid_ids: int
    errors_resolver_wipe: int
    valid: list[float]
    latency_s: list[float]
    texts: int
    reward: list[float]
    json_clean: int
    json_fenced: int
    json_embedded: int
    unknown_ids: int


class ErrorMetrics(BaseModel):
    """Errors of all stages by kind, recovered ones included."""

    errors_parse: int
    errors_wrong_type: int
    errors_context_overflow: int
    errors_invalid_ids: int
    errors_resolver_wipe: int
    errors_search_failed: int


def stage_metrics(
    calls: Sequence[CallRecord], texts: Sequence[Captured], search_errors: int
) -> dict[str, int | list[float]]:
    """All of them under flat names. `errors` of a stage counts unusable answers, not recovered ones."""
    stages = {stage: _stage(stage, [r for r in calls if r.stage == stage], texts) for stage in Stage}
    kinds = {
        name: sum(getattr(metrics, name) for metrics in stages.values())
        for name in ErrorMetrics.model_fields
        if name in StageMetrics.model_fields
    }
    flat = {f"{stage}_{name}": value for stage, metrics in stages.items() for name, value in metrics}
    return flat | dict(ErrorMetrics(**kinds, errors_search_failed=search_errors))


def _stage(stage: Stage, calls: Sequence[CallRecord], texts: Sequence[Captured]) -> StageMetrics:
    own = [text for text in texts if text.record.stage == stage]
    paths = Counter(record.json_path for record in calls)
    kinds = Counter(kind for record in calls if (kind := error_of(record)) is not None)
    return StageMetrics(
        calls=len(calls),
        errors=sum(record.error is not None for record in calls),
        errors_parse=kinds[ErrorKind.PARSE],
        errors_wrong_type=kinds[ErrorKind.WRONG_TYPE],
        errors_context_overflow=kinds[ErrorKind.CONTEXT_OVERFLOW],
        errors_invalid_ids=kinds[ErrorKind.INVALID_IDS],
        errors_resolver_wipe=kinds[ErrorKind.RESOLVER_WIPE],
        valid=[float(record.error is None) for record in calls],
        latency_s=[record.latency_s for record in calls],
        texts=len(own),
        reward=[text.reward for text in own],
        json_clean=paths["clean"],
        json_fenced=paths["fenced"],
        json_embedded=paths["embedded"],
        unknown_ids=sum(
            record.facts.unknown_ids
            for record in calls
            if isinstance(record.facts, ChooseFacts | ResolveFacts)
        ),
    )


def error_of(record: CallRecord) -> ErrorKind | None:
    """What was wrong with the answer of a call, whether it was fatal or recovered from."""
    if record.error is not None:
        return record.error
    return record.facts.error if isinstance(record.facts, ResolveFacts) else None
