"""How a scripted answer is written: the JSON of each stage, in the form that its prompt set asks for."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from domains.privacy_hopqa.agent.interfaces import PlanContext, ReadContext, ReadNote
from domains.privacy_hopqa.data.chains import Source

CONFIDENCE = 0.9
STOP = "[]"
"""The plan of whoever has found enough, in every prompt set."""
_TYPES: Mapping[Source, str] = {"web": "web_search", "local": "local_document_search"}
_WORD = re.compile(r"[\w%$]+")
_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n|\"")
"""Also rows and quoted cells of tables."""
_JUSTIFICATION_CHARS = 200


class Answers(Protocol):
    """The answers of one prompt set."""

    def plan(self, context: PlanContext, source: Source, query: str) -> str:
        """One search."""

    def choice(self, ids: Sequence[str], index: int) -> str:
        """The candidate at `index` of `ids`, which are in the order of the cards."""

    def read(self, context: ReadContext, found: str | None) -> str:
        """`found` is the answer as the window writes it; None: it does not hold the answer."""

    def resolve(self, supporting: ReadNote | None) -> str:
        """The answer of the reading that supports one, or another search."""


class CompactAnswers:
    """Only the fields that are read. Values start with a space, to be tokenised as in running text."""

    def plan(self, context: PlanContext, source: Source, query: str) -> str:
        return _dense([{"type": _TYPES[source], "parameters": {"query": f" {query}"}}])

    def choice(self, ids: Sequence[str], index: int) -> str:
        return _dense({"selected_doc_ids": [f"d{index + 1}"]})

    def read(self, context: ReadContext, found: str | None) -> str:
        if found is None:
            return _dense({"can_answer": False})
        return _dense({"can_answer": True, "proposed_answer": f" {found}", "confidence": CONFIDENCE})

    def resolve(self, supporting: ReadNote | None) -> str:
        if supporting is None:
            return _dense({"answered": False, "next_step": "search_more"})
        answer = f" {supporting.answer}"
        return _dense({"answered": True, "answer": answer, "confidence": CONFIDENCE, "next_step": "done"})


class FullAnswers:
    """Every field that the complete prompts ask for, in their order."""

    def plan(self, context: PlanContext, source: Source, query: str) -> str:
        search = {
            "type": _TYPES[source],
            "description": f"answer question {context.view.hop_number}",
            "parameters": {"query": query},
            "priority": 1.0,
            "expected_output": "the answer",
        }
        return _spaced([search])

    def choice(self, ids: Sequence[str], index: int) -> str:
        return _spaced({"selected_doc_ids": [ids[index]]})

    def read(self, context: ReadContext, found: str | None) -> str:
        stated = "" if found is None else sentence(context.window.text, found, context.view.question)
        return _spaced(
            {
                "can_answer": found is not None,
                "proposed_answer": found or "",
                "justification": stated,
                "confidence": 0.0 if found is None else CONFIDENCE,
                "missing_information": "the answer" if found is None else "",
            }
        )

    def resolve(self, supporting: ReadNote | None) -> str:
        reason = "no reading answers it" if supporting is None else "a reading answers it"
        return _spaced(
            {
                "answered": supporting is not None,
                "answer": supporting.answer if supporting else "",
                "justification": "a reading states it" if supporting else "",
                "confidence": CONFIDENCE if supporting else 0.0,
                "reason": reason,
                "next_step": "done" if supporting else "search_more",
                "selected_doc_ids": [supporting.window_id] if supporting else [],
            }
        )


ANSWERS: Mapping[str, Answers] = {"full": FullAnswers(), "compact": CompactAnswers()}
"""By the name that `prompt_set` gives."""


def sentence(text: str, value: str, question: str) -> str:
    """The sentence of `text` that holds `value`; of several the one with most words of the question."""
    asked = set(_WORD.findall(question.lower()))
    found = [one.strip() for one in _SENTENCES.split(text) if value in one] or [value]
    best = max(found, key=lambda one: len(asked & set(_WORD.findall(one.lower()))))
    return best[:_JUSTIFICATION_CHARS]


def _dense(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _spaced(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
