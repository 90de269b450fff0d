"""The two ways to search for a public page: with the private value that selects it, and without."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .lists import words

_REFERENCE = re.compile(r"\((\d+)\)")
QUESTION_WORDS = frozenset(
    words(
        "a an and are as at be by did do does for from had has have how in is it its many much of on or per "
        "that the their there these this to was were what when where which who whose why with"
    )
)


def keyword_query(question: str) -> str:
    """The content words of a question in their order, without punctuation at their ends."""
    kept = (word.strip("?.,;:!\"'()") for word in question.split())
    return " ".join(word for word in kept if word and word.lower() not in QUESTION_WORDS)


def leaky_query(hop: Mapping[str, Any], answers: Mapping[int, str]) -> str:
    """The question's words with every reference filled from `answers`, private or not.

    `hop` is a dataset hop. Raises `KeyError` for a reference without an answer.
    """
    return keyword_query(_REFERENCE.sub(lambda found: answers[int(found[1])], hop["question_templated"]))


def safe_query(hop: Mapping[str, Any], public: Mapping[int, str] | None = None) -> str:
    """The question's topic words and qualifier; references stay out unless their answer is public."""
    known = public or {}
    text = _REFERENCE.sub(lambda found: known.get(int(found[1]), ""), hop["question_templated"])
    return keyword_query(text)
