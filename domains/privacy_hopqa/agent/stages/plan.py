"""Plan: which searches to run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from domains.privacy_hopqa.agent.stages.parsing import number, parse_array, string
from domains.privacy_hopqa.data.chains import Source

_SOURCES: dict[str, Source] = {"web_search": "web", "local_document_search": "local"}

QueryKey = tuple[Source, str]


@dataclass(frozen=True, slots=True)
class Action:
    """One usable search of a plan."""

    source: Source
    query: str
    description: str
    priority: float
    expected_output: str


@dataclass(frozen=True, slots=True)
class PlanResult:
    """Usable actions in order; `rejected` counts the others by reason (an extra item is `over_limit`)."""

    actions: tuple[Action, ...]
    explicitly_empty: bool
    rejected: dict[str, int]
    json_path: str


def query_key(source: Source, query: str) -> QueryKey:
    """Two queries of one source with the same key are the same search: case and spaces do not count."""
    return source, " ".join(query.lower().split())


def parse_plan(text: str, *, limit: int, no_web: bool, earlier: Collection[QueryKey]) -> PlanResult:
    """Parse a plan. `earlier` holds the keys of the last searches of this hop.

    Raises StageError PARSE or WRONG_TYPE if the answer is no JSON array.
    """
    items, path = parse_array(text)
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
    return PlanResult(tuple(actions), not items, dict(rejected), path)


def _parse_action(item: Any, no_web: bool) -> Action | str:
    """The action, or why it is not usable."""
    if not isinstance(item, dict):
        return "not_an_object"
    raw_type = item.get("type")
    source = _SOURCES.get(raw_type) if isinstance(raw_type, str) else None
    if source is None:
        return "bad_type"
    if source == "web" and no_web:
        return "no_web"
    parameters = item.get("parameters")
    description = string(item, "description")
    query = (string(parameters, "query") if isinstance(parameters, dict) else "") or description
    if not query:
        return "empty_query"
    return Action(
        source, query, description, number(item.get("priority"), 0.5), string(item, "expected_output")
    )
