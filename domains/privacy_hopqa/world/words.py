"""The words of a world, kept as YAML beside this module, and the content words of a question.

By these words the world's checks and the teacher search. Documents and pages are made of what `read` gives.
"""

from pathlib import Path
from typing import Any

import yaml

_QUESTION_WORDS = """
a an and are as at be by did do does for from had has have how in is it its many much of on or per that the
their there these this to was were what when where which who whose why with
"""
QUESTION_WORDS = frozenset(_QUESTION_WORDS.split())


def read(name: str) -> dict[str, Any]:
    """The lists and tables of `NAME.yaml`."""
    text = (Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def capital(text: str) -> str:
    """The text with its first letter upper case."""
    return text[:1].upper() + text[1:]


def keyword_query(question: str) -> str:
    """The content words of a question in their order, without punctuation at their ends."""
    kept = (word.strip("?.,;:!\"'()") for word in question.split())
    return " ".join(word for word in kept if word and word.lower() not in QUESTION_WORDS)
