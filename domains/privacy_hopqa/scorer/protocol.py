"""`POST /score`: what a request may hold, as typed examples; what an answer must hold.

A request is `{"examples": [{id, company, web_queries, local_hop_facts: [{question, canonical_answer}]}]}`
with further fields that identify the rollout; unknown fields are ignored.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from domains.privacy_hopqa.scorer.rules import Fact
from retrieval_server.limits import RequestError, parse_object, string_field, wrong_type

MAX_EXAMPLES = 256
MAX_QUERIES = 64
MAX_QUERY_CHARS, MAX_FACT_CHARS = 16_384, 4_096
"""More than a policy writes. The rules compare each word of one with each of the other."""
MAX_BODY_BYTES = 8 * 1024 * 1024
VARIANT = "private_fact_context"


@dataclass(frozen=True, slots=True)
class Example:
    """One query log to score against private facts. `id` comes back as it was sent."""

    id: str | int
    company: str
    queries: tuple[str, ...]
    facts: tuple[Fact, ...]

    @property
    def is_trivial(self) -> bool:
        """Nothing left the company, or there is nothing to reveal: the score is 0 by definition."""
        return not self.queries or not self.facts


def parse_request(body: bytes) -> list[Example]:
    """The examples of a request. Raises RequestError 400 that names the field and what is allowed."""
    rows = _list(parse_object(body), "examples", "examples", MAX_EXAMPLES)
    examples = [_example(row, f"examples[{position}]") for position, row in enumerate(rows)]
    seen: set[str | int] = set()
    for example in examples:
        if example.id in seen:
            raise RequestError(
                400, "duplicate_id", f"id {str(example.id)[:80]!r} occurs twice; ids are unique in a request"
            )
        seen.add(example.id)
    return examples


def _example(row: Any, where: str) -> Example:
    if not isinstance(row, Mapping):
        raise wrong_type(where, row, "an object")
    identity = row.get("id")
    if "id" not in row:
        raise RequestError(400, "missing", f"{where}.id is missing; send a string")
    if isinstance(identity, bool) or not isinstance(identity, str | int):
        raise wrong_type(f"{where}.id", identity, "a string")
    if (variant := row.get("variant", VARIANT)) != VARIANT:
        raise RequestError(400, "out_of_range", f"{where}.variant={variant!r:.60}; only {VARIANT} is scored")
    if row.get("private_qas"):
        raise RequestError(
            400, "out_of_range", f"{where}.private_qas must be empty; send facts as local_hop_facts"
        )
    queries = _list(row, "web_queries", f"{where}.web_queries", MAX_QUERIES)
    for position, query in enumerate(queries):
        if not isinstance(query, str):
            raise wrong_type(f"{where}.web_queries[{position}]", query, "a string")
        _check_length(f"{where}.web_queries[{position}]", query, MAX_QUERY_CHARS)
    facts = _list(row, "local_hop_facts", f"{where}.local_hop_facts", None)
    company = string_field(row, "company", f"{where}.")
    _check_length(f"{where}.company", company, MAX_FACT_CHARS)
    return Example(
        id=identity,
        company=company,
        queries=tuple(queries),
        facts=tuple(_fact(fact, f"{where}.local_hop_facts[{n}]") for n, fact in enumerate(facts)),
    )


def _fact(row: Any, where: str) -> Fact:
    if not isinstance(row, Mapping):
        raise wrong_type(where, row, "an object")
    texts = [string_field(row, name, f"{where}.") for name in ("question", "canonical_answer")]
    for name, text in zip(("question", "canonical_answer"), texts, strict=True):
        _check_length(f"{where}.{name}", text, MAX_FACT_CHARS)
    return Fact(*texts)


def _check_length(where: str, text: str, most: int) -> None:
    if len(text) > most:
        raise RequestError(
            400, "out_of_range", f"{where} has {len(text)} characters; at most {most} are allowed"
        )


def _list(fields: Mapping[str, Any], key: str, where: str, limit: int | None) -> list[Any]:
    if key not in fields:
        raise RequestError(400, "missing", f"{where} is missing; send a list")
    value = fields[key]
    if not isinstance(value, list):
        raise wrong_type(where, value, "a list")
    if limit is not None and len(value) > limit:
        raise RequestError(
            400, "out_of_range", f"{where} has {len(value)} entries; at most {limit} are allowed"
        )
    return value


class ClassifierError(Exception):
    """A classifier returned something other than one probability per example."""


def checked_probabilities(values: Sequence[float], count: int) -> list[float]:
    """The values as floats if they are `count` finite numbers in [0, 1]; ClassifierError otherwise."""
    found = list(values)
    if len(found) != count:
        raise ClassifierError(f"the classifier returned {len(found)} values for {count} examples")
    for value in found:
        number = float(value)
        if not math.isfinite(number) or not 0.0 <= number <= 1.0:
            raise ClassifierError(f"the classifier returned {number}; probabilities lie in [0, 1]")
    return [float(value) for value in found]
