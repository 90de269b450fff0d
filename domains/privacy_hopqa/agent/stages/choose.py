"""Choose: which candidate documents to read."""

from __future__ import annotations

from dataclasses import dataclass

from domains.privacy_hopqa.agent.errors import ErrorKind, StageError
from domains.privacy_hopqa.agent.stages.parsing import Resolve, parse_object, selected_ids


@dataclass(frozen=True, slots=True)
class ChooseResult:
    """Chosen documents in order, and how many names in the answer were unknown."""

    doc_ids: tuple[str, ...]
    unknown_ids: int
    json_path: str


def parse_choice(text: str, *, resolve: Resolve, limit: int) -> ChooseResult:
    """Parse a choice. Raises StageError PARSE, WRONG_TYPE, or INVALID_IDS if no valid document is named."""
    values, path = parse_object(text)
    documents, unknown = selected_ids(values, "selected_doc_ids", resolve, limit)
    if not documents:
        raise StageError(ErrorKind.INVALID_IDS, f"no valid document among {unknown} named")
    return ChooseResult(tuple(documents), unknown, path)
