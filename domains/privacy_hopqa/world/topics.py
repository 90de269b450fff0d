"""What documents are about: private attributes of a company, and subjects of public pages (`topics.yaml`).

An attribute is told in sentences whose shape depends on the kind of its value (`wording.yaml`).
"""

from dataclasses import dataclass
from typing import Final

from .words import read

WORDING: Final = read("wording")
LINKING: Final = ("year", "product", "vendor", "place")
"""Kinds of values that other questions can be asked about."""
COMPANION_KINDS: Final = ("product", "vendor", "place", "year", "month", "money", "count")


@dataclass(frozen=True, slots=True)
class Attribute:
    """A property of a company with one value per scope (a year, or a product, vendor or place)."""

    kind: str
    scope: str
    """Kind of the scope value: `year`, `product`, `vendor` or `place`."""
    office: str
    about: str
    done: str = ""
    """The past participle of what was done, or the predicate of a share."""

    @property
    def key(self) -> str:
        """Different for every attribute."""
        return "-".join((*self.about.split(), self.kind))

    def clause(self, value: str) -> str:
        """What a page says of its group: the attribute's words, no company, a value that picks it out."""
        template: str = WORDING["selecting_clauses"][self.kind]
        return template.format(a=self.about, d=self.done, v=value)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a public page is asked about: its `noun` has one value of `kind` per page."""

    kind: str
    noun: str


_TOPICS: Final = read("topics")
ATTRIBUTES: Final = tuple(
    Attribute(kind, *row) for kind, rows in _TOPICS["attributes"].items() for row in rows
)
SUBJECTS: Final = tuple(Subject(kind, noun) for kind, nouns in _TOPICS["subjects"].items() for noun in nouns)
COMPANION_SUBJECTS: Final[dict[str, list[str]]] = _TOPICS["companion_subjects"]
OFFICES: Final[dict[str, str]] = _TOPICS["offices"]
SECTOR_GROUPS: Final[list[str]] = _TOPICS["sector_groups"]
