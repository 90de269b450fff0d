"""Chains of linked questions as typed values, parsed from dataset rows by the loader and the validation."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Source = Literal["local", "web"]

TASK_ID = re.compile(r"^[A-Za-z0-9_-]{1,64}$")
TASK_PREFIX = re.compile(r"^(?:drbench/data/tasks/|drbench/data/|data/tasks/)")
_HOP_TYPES: dict[str, Source] = {
    **dict.fromkeys(("l", "local", "local_document_search"), "local"),
    **dict.fromkeys(("w", "web", "web_search"), "web"),
}
HOP_TYPE_KEYS = ("hop_type", "source")
REFERENCE = re.compile(r"\((\d+)\)")


@dataclass(frozen=True, slots=True)
class Hop:
    """One question of a chain. `question` holds `(n)` references; gold fields never reach a prompt."""

    number: int
    question: str
    source: Source
    dependencies: tuple[int, ...]
    answer: str
    accepted: tuple[str, ...]
    gold_values: tuple[str, ...]

    def filled(self, answers: Mapping[int, str]) -> str:
        """The question with each `(n)` of an answered earlier hop replaced; other parentheses stay."""

        def replace(match: re.Match[str]) -> str:
            number = int(match[1])
            return answers.get(number, match[0]) if number < self.number else match[0]

        return REFERENCE.sub(replace, self.question)


@dataclass(frozen=True, slots=True)
class PrivateQuestion:
    """A private question with its answers, for privacy scoring and leakage evaluation only.

    Where it comes from (`hop_number` is 0 for a question of the task) does not count for equality, so that
    an evaluation asks the same question once.
    """

    question: str
    answer: str
    variants: tuple[str, ...] = ()
    fact_id: str = field(default="", compare=False)
    hop_number: int = field(default=0, compare=False)
    doc_id: str = field(default="", compare=False)

    @property
    def accepted(self) -> tuple[str, ...]:
        """All answers that count as right, the canonical one first."""
        return (self.answer, *self.variants)


@dataclass(frozen=True, slots=True)
class Chain:
    """A problem: hops in order, and what the prompts may know about the task."""

    problem_id: str
    chain_id: str
    task_id: str
    split: str
    pattern: str
    questions: str
    company: str
    company_description: str
    hops: tuple[Hop, ...]
    final_answers: tuple[str, ...]
    task_questions: tuple[PrivateQuestion, ...]

    def hop(self, number: int) -> Hop:
        """The hop with this number (1-based)."""
        return self.hops[number - 1]

    @property
    def gold_answers(self) -> dict[int, str]:
        """Canonical answer per hop number."""
        return {hop.number: hop.answer for hop in self.hops}

    def private_questions(self, facts: Literal["chain", "task"]) -> tuple[PrivateQuestion, ...]:
        """The chain's private hops with references filled by gold; with `task` also the task's questions."""
        gold = self.gold_answers
        chain = tuple(
            PrivateQuestion(
                question=hop.filled(gold),
                answer=hop.answer,
                variants=hop.accepted,
                fact_id=f"hop{hop.number}",
                hop_number=hop.number,
                doc_id=next(iter(hop.gold_values), ""),
            )
            for hop in self.hops
            if hop.source == "local"
        )
        return chain + self.task_questions if facts == "task" else chain


def hop_source(row: Mapping[str, Any], pattern: str, number: int) -> Source:
    """Where a hop's answer lies: its own `hop_type` (or `source`), else the pattern's character.

    The only resolver of hop types: rewards, metrics and the collection of private facts all use it. A value
    that is no hop type counts as absent where the pattern knows the hop. Raises ValueError if nothing names
    a type.
    """
    given = {key: row[key] for key in HOP_TYPE_KEYS if row.get(key) is not None}
    for raw in given.values():
        if found := known_hop_type(raw):
            return found
    if number <= len(pattern):
        return _HOP_TYPES[pattern[number - 1].lower()]
    if given:
        key, raw = next(iter(given.items()))
        raise ValueError(f"hop {number}: {key}={raw!r} is not one of {', '.join(_HOP_TYPES)}")
    raise ValueError(f"hop {number}: no hop_type, and pattern {pattern!r} has no character for it")


def known_hop_type(raw: Any) -> Source | None:
    """The source that one spelling of a hop type stands for, in any case; None if it is none."""
    return _HOP_TYPES.get(str(raw).strip().lower())


def parse_chain(row: Mapping[str, Any], *, company: str, description: str, split: str) -> Chain:
    """A chain from a dataset row. Raises ValueError naming the field that is missing or wrong."""
    pattern = str(row.get("pattern") or "").replace("-", "").strip().upper()
    if set(pattern) - {"L", "W"}:
        raise ValueError(f"pattern={row['pattern']!r} may hold only L and W")
    raw_hops = row.get("hops")
    if not isinstance(raw_hops, list) or not raw_hops:
        raise ValueError("hops must be a non-empty list")
    hops = tuple(_parse_hop(raw, index, pattern) for index, raw in enumerate(raw_hops, 1))
    final = _strings(row, "global_answer", "global_answer_variants", "global_alternate_valid_answers")
    chain_id = _required(row, "chain_id")
    return Chain(
        problem_id=str(row.get("problem_id") or f"privacy_hopqa_{chain_id}"),
        chain_id=chain_id,
        task_id=parse_task_id(row),
        split=split,
        pattern=pattern or "".join("L" if hop.source == "local" else "W" for hop in hops),
        questions=_questions_text(row, hops),
        company=company,
        company_description=description,
        hops=hops,
        final_answers=final or hops[-1].accepted,
        task_questions=_task_questions(row.get("private_questions") or ()),
    )


def parse_task_id(row: Mapping[str, Any]) -> str:
    """The task directory's name without its known prefixes; ValueError if it could leave the root."""
    task_id = TASK_PREFIX.sub("", _required(row, "task_id"))
    if not TASK_ID.fullmatch(task_id):
        raise ValueError(f"task_id={task_id!r} must match {TASK_ID.pattern}")
    return task_id


def _parse_hop(raw: Any, expected: int, pattern: str) -> Hop:
    if not isinstance(raw, Mapping):
        raise ValueError(f"hop {expected}: must be an object, not {type(raw).__name__}")
    given = raw.get("hop_number")
    if isinstance(given, bool) or given != expected:
        raise ValueError(f"hop_number={given!r} where {expected} is due (contiguous from 1)")
    number = expected  # 1.0 equals 1, as tables write it, but is no index and stands in no question
    templated = str(raw.get("question_templated") or "").strip()
    question = templated or str(raw.get("question") or "").strip()
    if not question:
        raise ValueError(f"hop {number}: neither question nor question_templated")
    accepted = _strings(raw, "answer", "accepted_answer_variants", "alternate_valid_answers")
    if raw.get("answer") is None or not str(raw["answer"]).strip():
        raise ValueError(f"hop {number}: answer is missing")
    references = {int(found) for found in REFERENCE.findall(question)}
    return Hop(
        number=number,
        question=question,
        source=hop_source(raw, pattern, number),
        dependencies=tuple(sorted(n for n in references if 1 <= n < number)),
        answer=str(raw["answer"]).strip(),
        accepted=accepted,
        gold_values=_strings(raw, "doc_id", "gold_doc_id", "doc_ref", "gold_doc_ref"),
    )


def _questions_text(row: Mapping[str, Any], hops: Sequence[Hop]) -> str:
    given = row.get("numbered_questions") or row.get("task")
    if isinstance(given, list) and all(isinstance(line, str) for line in given) and given:
        return "\n".join(given)
    if isinstance(given, str) and given:
        return given
    if given:
        raise ValueError(f"numbered_questions is a {type(given).__name__}; give a text or a list of texts")
    return "\n".join(f"({hop.number}) {hop.question}" for hop in hops)


def _task_questions(rows: Sequence[Any]) -> tuple[PrivateQuestion, ...]:
    for row in rows:
        if not isinstance(row, Mapping) or not row.get("question") or not row.get("answer"):
            raise ValueError(f"private_questions: {row!r} needs a question and an answer")
    return tuple(
        PrivateQuestion(
            str(row["question"]), str(row["answer"]), fact_id=f"task{i}", doc_id=str(row.get("doc_id") or "")
        )
        for i, row in enumerate(rows, 1)
    )


def _required(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if value is None or str(value).strip() == "":
        raise ValueError(f"{key} is missing")
    return str(value).strip()


def _strings(row: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    """Non-empty strings of the fields in order, each field a value or a list, without repeats."""
    found: dict[str, None] = {}
    for key in keys:
        value = row.get(key)
        for item in value if isinstance(value, list) else [value]:
            if item is not None and str(item).strip():
                found[str(item).strip()] = None
    return tuple(found)
