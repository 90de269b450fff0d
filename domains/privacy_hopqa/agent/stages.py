"""What each stage accepts from the model: the reply's JSON in, a typed decision or a StageError out.

Every call reads its reply with `read_reply`; loop and settler then parse it, each stage with one function.
Recovery is spelled out here, because every lenient reading of a malformed reply could be rewarded: an answer
that names nothing valid is an error, never a guess.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from domains.privacy_hopqa.agent.errors import ErrorKind, StageError
from domains.privacy_hopqa.agent.interfaces import Stage
from domains.privacy_hopqa.data.chains import Source
from domains.privacy_hopqa.data.json_extract import ExtractError, extract

Resolve = Callable[[str], str | None]
"""From an id in the model's answer to a document id, or None if it names nothing on offer."""
QueryKey = tuple[Source, str]
NextStep = Literal["done", "read_more", "search_more"]

_NOTHING = frozenset({"", "none", "null", "nothing", "n/a", "na", "-"})
"""What models write where nothing is missing, beside empty values."""
_SOURCES: dict[str, Source] = {"web_search": "web", "local_document_search": "local"}


def read_reply(text: str, stage: Stage) -> tuple[Any, str]:
    """A plan's array or the object of any other stage, and the path on which it was found.

    Raises StageError PARSE or WRONG_TYPE.
    """
    try:
        found = extract(text, "array" if stage is Stage.PLAN else "object")
    except ExtractError as error:
        kind = ErrorKind.WRONG_TYPE if error.kind == "wrong_type" else ErrorKind.PARSE
        raise StageError(kind, f"{error.kind}: {error}") from None
    return found.value, found.path


@dataclass(frozen=True, slots=True)
class Action:
    """One usable search of a plan."""

    source: Source
    query: str


@dataclass(frozen=True, slots=True)
class PlanResult:
    """Usable actions in order; `rejected` counts the others by reason (an extra item is `over_limit`)."""

    actions: tuple[Action, ...]
    explicitly_empty: bool
    rejected: dict[str, int]


def query_key(source: Source, query: str) -> QueryKey:
    """Two queries of one source with the same key are the same search: case and spaces do not count."""
    return source, " ".join(query.lower().split())


def parse_plan(
    items: Sequence[Any], *, limit: int, no_web: bool, earlier: Collection[QueryKey]
) -> PlanResult:
    """Which searches to run. `earlier` holds the keys of the last searches of this hop."""
    rejected: Counter[str] = Counter()
    if len(items) > limit:
        rejected["over_limit"] = len(items) - limit
    seen = set(earlier)
    actions: list[Action] = []
    for item in items[:limit]:
        action = _parse_action(item, no_web)
        if isinstance(action, str):
            rejected[action] += 1
            continue
        key = query_key(action.source, action.query)
        if key in seen:
            rejected["repeated"] += 1
            continue
        seen.add(key)
        actions.append(action)
    # Only an array that is empty itself says that nothing is missing; one of unusable items does not.
    return PlanResult(tuple(actions), not items, dict(rejected))


def _parse_action(item: Any, no_web: bool) -> Action | str:
    """The action, or why it is not usable. A priority is accepted whatever it is and has no effect."""
    if not isinstance(item, dict):
        return "not_an_object"
    raw_type = item.get("type")
    source = _SOURCES.get(raw_type) if isinstance(raw_type, str) else None
    if source is None:
        return "bad_type"
    if source == "web" and no_web:
        return "no_web"
    parameters = item.get("parameters")
    query = _string(parameters, "query") if isinstance(parameters, dict) else ""
    query = query or _string(item, "description")
    return Action(source, query) if query else "empty_query"


def parse_choice(values: Mapping[str, Any], *, resolve: Resolve, limit: int) -> tuple[tuple[str, ...], int]:
    """Which documents to read, in order, and how many names in the answer were unknown.

    Raises StageError INVALID_IDS if no valid one is named.
    """
    documents, unknown = _selected_ids(values, "selected_doc_ids", resolve, limit)
    if not documents:
        raise StageError(ErrorKind.INVALID_IDS, f"no valid document among {unknown} named")
    return documents, unknown


@dataclass(frozen=True, slots=True)
class ReadResult:
    """`positive` only with an answer, enough confidence and nothing missing."""

    positive: bool
    answer: str
    justification: str
    confidence: float
    missing: str


def parse_read(values: Mapping[str, Any], *, min_confidence: float) -> ReadResult:
    """Whether one document window answers the question. Raises StageError WRONG_TYPE without `can_answer`."""
    claimed = _boolean(values, "can_answer")
    answer = _string(values, "proposed_answer")
    confidence = _probability(values.get("confidence"))
    missing = _missing(values.get("missing_information"))
    positive = claimed and bool(answer) and confidence >= min_confidence and not missing
    return ReadResult(positive, answer, _string(values, "justification"), confidence, missing)


def _missing(value: object) -> str:
    """What the reader still misses; empty lists, null and words for nothing, such as `None`, are nothing."""
    if value is None or value is False:
        return ""
    items = [str(item).strip() for item in (value if isinstance(value, list) else [value])]
    return "; ".join(item for item in items if item.rstrip(".").casefold() not in _NOTHING)


@dataclass(frozen=True, slots=True)
class ResolveResult:
    """An answer (`answered`) or the next step. `error` is a recovered one: the run goes on.

    `supporting`: the read documents named with an answer, under `supporting_doc_ids` or `selected_doc_ids`.
    """

    answered: bool
    answer: str
    justification: str
    next_step: NextStep
    doc_ids: tuple[str, ...]
    supporting: tuple[str, ...]
    unknown_ids: int
    error: ErrorKind | None


def parse_resolution(
    values: Mapping[str, Any],
    *,
    resolve_unread: Resolve,
    resolve_read: Resolve,
    limit: int,
    has_reads: bool,
    has_positive: bool,
) -> ResolveResult:
    """Whether the reads of a hop answer it, and what to do if not.

    Raises StageError WRONG_TYPE without `answered`. An answer that is empty or that no positive read supports
    is withdrawn (RESOLVER_WIPE); `read_more` without a valid unread document becomes `search_more`
    (INVALID_IDS).
    """
    answer = _string(values, "answer")
    wanted = _boolean(values, "answered")
    answered = wanted and bool(answer) and has_positive
    error = ErrorKind.RESOLVER_WIPE if wanted and not answered else None
    step = "done" if answered else _next_step(values.get("next_step"), wiped=wanted, has_reads=has_reads)
    doc_ids: tuple[str, ...] = ()
    unknown = 0
    if step == "read_more":
        doc_ids, unknown = _selected_ids(values, "selected_doc_ids", resolve_unread, limit)
        if not doc_ids:
            step, error = "search_more", error or ErrorKind.INVALID_IDS
    supporting, _ = _selected_ids(values, "supporting_doc_ids", resolve_read, limit)
    if answered and not supporting:
        supporting, _ = _selected_ids(values, "selected_doc_ids", resolve_read, limit)
    return ResolveResult(
        answered=answered,
        answer=answer if answered else "",
        justification=_string(values, "justification") or _string(values, "reason"),
        next_step=step,
        doc_ids=doc_ids,
        supporting=supporting,
        unknown_ids=unknown,
        error=error,
    )


def _next_step(value: object, *, wiped: bool, has_reads: bool) -> NextStep:
    if wiped:
        return "read_more" if has_reads else "search_more"
    return "read_more" if value == "read_more" else "search_more"


def _string(values: Mapping[str, Any], key: str) -> str:
    """The field as stripped text; numbers are taken as written, anything else is empty."""
    value = values.get(key)
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return ""


def _boolean(values: Mapping[str, Any], key: str) -> bool:
    """The required flag; StageError WRONG_TYPE if it is missing or no boolean."""
    value = values.get(key)
    if not isinstance(value, bool):
        raise StageError(ErrorKind.WRONG_TYPE, f"{key} must be true or false, not {value!r:.40}")
    return value


def _probability(value: Any) -> float:
    """A number, also one in quotes, clamped to [0, 1]; 0 where there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0.0
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return 0.0
    return min(1.0, max(0.0, found)) if math.isfinite(found) else 0.0


def _selected_ids(
    values: Mapping[str, Any], key: str, resolve: Resolve, limit: int
) -> tuple[tuple[str, ...], int]:
    """The first `limit` different documents named under `key`, and how many names were unknown."""
    raw = values.get(key)
    names: Sequence[Any] = raw if isinstance(raw, list) else ([] if raw is None else [raw])
    found: dict[str, None] = {}
    unknown = 0
    for name in names:
        document = resolve(name.strip()) if isinstance(name, str) else None
        if document is None:
            unknown += 1
        else:
            found[document] = None
    return tuple(found)[:limit], unknown
