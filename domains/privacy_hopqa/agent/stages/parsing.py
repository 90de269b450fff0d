"""What the stage parsers share: JSON of the right shape, numbers and texts without surprises."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from domains.privacy_hopqa.agent.errors import ErrorKind, StageError
from domains.privacy_hopqa.data.json_extract import ExtractError, JsonErrorKind, extract

Resolve = Callable[[str], str | None]
"""From an id in the model's answer to a document id, or None if it names nothing on offer."""


def parse_array(text: str) -> tuple[list[Any], str]:
    """(array, path of extraction); StageError PARSE or WRONG_TYPE."""
    return _extract(text, "array")


def parse_object(text: str) -> tuple[dict[str, Any], str]:
    """(object, path of extraction); StageError PARSE or WRONG_TYPE."""
    return _extract(text, "object")


def _extract(text: str, expected: Literal["array", "object"]) -> tuple[Any, str]:
    try:
        found = extract(text, expected)
    except ExtractError as error:
        kind = ErrorKind.WRONG_TYPE if error.kind == JsonErrorKind.WRONG_TYPE else ErrorKind.PARSE
        raise StageError(kind, f"{error.kind}: {error}") from None
    return found.value, found.path


def string(values: Mapping[str, Any], key: str) -> str:
    """The field as stripped text; numbers are taken as written, anything else is empty."""
    value = values.get(key)
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return ""


def boolean(values: Mapping[str, Any], key: str) -> bool:
    """The required flag; StageError WRONG_TYPE if it is missing or no boolean."""
    value = values.get(key)
    if not isinstance(value, bool):
        raise StageError(ErrorKind.WRONG_TYPE, f"{key} must be true or false, not {value!r:.40}")
    return value


def number(value: Any, default: float) -> float:
    """A finite number, else the default."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return default
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return default
    return found if math.isfinite(found) else default


def probability(value: Any) -> float:
    """A number clamped to [0, 1]; 0 where there is none."""
    return min(1.0, max(0.0, number(value, 0.0)))


def selected_ids(values: Mapping[str, Any], key: str, resolve: Resolve, limit: int) -> tuple[list[str], int]:
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
    return list(found)[:limit], unknown
