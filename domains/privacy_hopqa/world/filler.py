"""Sentences without values, which make documents and pages as long and as plain as real ones."""

from typing import Final

from .draws import Draws
from .words import read

_PARTS: Final = read("filler")


def office_sentence(draws: Draws) -> str:
    """A sentence of a private document."""
    return _sentence(draws, "who", "did", "when")


def public_sentence(draws: Draws) -> str:
    """A sentence of a public page."""
    return _sentence(draws, "public_who", "public_did", "when")


def company_sentence(draws: Draws, company: str) -> str:
    """A sentence that says the company's name and nothing private."""
    return f"{company} {_sentence(draws, 'company_did')}"


def _sentence(draws: Draws, *parts: str) -> str:
    return " ".join(draws.pick(_PARTS[part]) for part in parts) + "."
