"""Resolve: whether the reads of a hop answer it, and what to do if they do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from domains.privacy_hopqa.agent.errors import ErrorKind
from domains.privacy_hopqa.agent.stages.parsing import (
    Resolve,
    boolean,
    parse_object,
    probability,
    selected_ids,
    string,
)

NextStep = Literal["done", "read_more", "search_more"]


@dataclass(frozen=True, slots=True)
class ResolveResult:
    """An answer (`answered`) or the next step. `error` is a recovered one: the run goes on.

    `supporting`: the read documents named with an answer, under `supporting_doc_ids` or `selected_doc_ids`.
    """

    answered: bool
    answer: str
    justification: str
    confidence: float
    next_step: NextStep
    doc_ids: tuple[str, ...]
    supporting: tuple[str, ...]
    unknown_ids: int
    error: ErrorKind | None
    json_path: str


def parse_resolution(
    text: str,
    *,
    resolve_unread: Resolve,
    resolve_read: Resolve,
    limit: int,
    has_reads: bool,
    has_positive: bool,
) -> ResolveResult:
    """Parse a resolution. Raises StageError PARSE or WRONG_TYPE.

    An answer that is empty or that no positive read supports is withdrawn (RESOLVER_WIPE); `read_more`
    without a valid unread document becomes `search_more` (INVALID_IDS).
    """
    values, path = parse_object(text)
    answer = string(values, "answer")
    wanted = boolean(values, "answered")
    answered = wanted and bool(answer) and has_positive
    error = ErrorKind.RESOLVER_WIPE if wanted and not answered else None
    step = "done" if answered else _next_step(values.get("next_step"), wiped=wanted, has_reads=has_reads)
    doc_ids: list[str] = []
    unknown = 0
    if step == "read_more":
        doc_ids, unknown = selected_ids(values, "selected_doc_ids", resolve_unread, limit)
        if not doc_ids:
            step, error = "search_more", error or ErrorKind.INVALID_IDS
    supporting, _ = selected_ids(values, "supporting_doc_ids", resolve_read, limit)
    if answered and not supporting:
        supporting, _ = selected_ids(values, "selected_doc_ids", resolve_read, limit)
    return ResolveResult(
        answered=answered,
        answer=answer if answered else "",
        justification=string(values, "justification") or string(values, "reason"),
        confidence=probability(values.get("confidence")),
        next_step=step,
        doc_ids=tuple(doc_ids),
        supporting=tuple(supporting),
        unknown_ids=unknown,
        error=error,
        json_path=path,
    )


def _next_step(value: object, *, wiped: bool, has_reads: bool) -> NextStep:
    if wiped:
        return "read_more" if has_reads else "search_more"
    return "read_more" if value == "read_more" else "search_more"
