"""Read: whether one document window answers the question."""

from __future__ import annotations

from dataclasses import dataclass

from domains.privacy_hopqa.agent.stages.parsing import boolean, parse_object, probability, string


@dataclass(frozen=True, slots=True)
class ReadResult:
    """`positive` only with an answer, enough confidence and nothing missing."""

    positive: bool
    answer: str
    justification: str
    confidence: float
    missing: str
    json_path: str


def parse_read(text: str, *, min_confidence: float) -> ReadResult:
    """Parse a read. Raises StageError PARSE or WRONG_TYPE."""
    values, path = parse_object(text)
    claimed = boolean(values, "can_answer")
    answer = string(values, "proposed_answer")
    confidence = probability(values.get("confidence"))
    missing = _missing(values.get("missing_information"))
    positive = claimed and bool(answer) and confidence >= min_confidence and not missing
    return ReadResult(positive, answer, string(values, "justification"), confidence, missing, path)


def _missing(value: object) -> str:
    """What the reader still misses; empty lists and null count as nothing."""
    if value is None or value is False:
        return ""
    if isinstance(value, list):
        return "; ".join(str(item).strip() for item in value if str(item).strip())
    return str(value).strip()
