"""Values that facts and pages state, with the spellings that count as the same answer."""

from dataclasses import dataclass
from typing import Final

from domains.privacy_hopqa.data import answers

from .draws import Draws
from .names import draw_name

MONTHS: Final = tuple(map(str.capitalize, answers.MONTHS))
YEARS: Final = tuple(range(2003, 2026))
SCOPE_YEARS: Final = tuple(range(2014, 2026))
_ID_LETTERS: Final = "BCDFGHJKLMNPRSTVWX"


@dataclass(frozen=True, slots=True)
class Value:
    """An answer of at most five words. Money is written in full dollars, identifiers as one token."""

    kind: str
    text: str

    def variants(self, noun: str = "") -> list[str]:
        """Accepted spellings, the canonical one first; `noun` is what a count counts."""
        if self.kind == "percent":
            return [self.text, self.text.replace("%", " percent")]
        if self.kind == "money":
            digits = self.text.removeprefix("$")
            return [self.text, f"{digits} dollars", f"${digits.removesuffix(',000')}k"]
        if self.kind == "count" and noun:
            return [self.text, f"{self.text} {noun}"]
        return [self.text]


def draw_value(draws: Draws, kind: str) -> Value:
    """A value of this kind; every number keeps at least two digits together, so that search can find it."""
    if kind == "percent":
        return Value(kind, f"{draws.between(11, 97)}%")
    if kind == "money":
        return Value(kind, f"${draws.between(102, 987)},000")
    if kind == "count":
        return Value(kind, str(draws.between(103, 987)))
    if kind == "month":
        return Value(kind, draws.pick(MONTHS))
    if kind == "year":
        return Value(kind, str(draws.pick(YEARS)))
    if kind == "id":
        letters = draws.pick(_ID_LETTERS) + draws.pick(_ID_LETTERS)
        return Value(kind, f"{letters}{draws.between(1002, 9987)}")
    return Value(kind, draw_name(draws, kind))


def draw_other(draws: Draws, kind: str, taken: set[str]) -> Value:
    """A value that is not in `taken`, which it joins. Raises if the kind has no value left."""
    for _ in range(400):
        value = draw_value(draws, kind)
        if value.text not in taken:
            taken.add(value.text)
            return value
    raise ValueError(f"no {kind} value is left that is not among {len(taken)} taken ones")
