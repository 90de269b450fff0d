"""Does a predicted answer match an accepted one? Numbers, identifiers and words compared as what they are.

An answer is normalised and split into tokens. Numbers are exact values with a sign, a scale and a unit, so
that `1,200` equals `1200.0` while `1.5%` never equals `15%`; identifiers such as `Q1`, `v2.5` or `C++` must
agree; words may differ as far as the token F1 allows.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from domains.short_answers import unglued

MatchMode = Literal["exact_or_f1", "accepted_exact", "f1_or_substring"]

_MONTHS = "january february march april may june july august september october november december"
MONTHS = tuple(_MONTHS.split())
_DASHES = re.compile("[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]")
_APOSTROPHES = re.compile("['\u2018\u2019\u02bc`]")
_ISO_DATE = re.compile(r"(?<!\d)(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])(?!\d)")
_MAX_DIGITS = 64  # a longer run of digits is an identifier, not a quantity
_MARKS = "".join(sign for code in range(0x20000) if unicodedata.category(sign := chr(code))[0] == "M")
"""Vowels and tones of Thai, Hindi and other scripts: parts of a word, although `\\w` leaves them out."""

_TOKEN = re.compile(
    rf"""
    (?P<number>
        (?:(?<!\S)|(?<=[(\[]))(?P<sign>[-+])|(?<![^\W_])
    )
    (?P<currency>(?:us)?[$€£¥₹]\s?|(?:usd|eur|gbp|jpy|inr)\s?)?
    (?P<inner>(?<=[$€£¥₹])-)?
    (?P<digits>\d{{1,3}}(?:,\d{{3}})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|(?<!\d)\.\d+)
    (?:\s?(?P<word>thousand|million|billion|trillion)(?![^\W_])|(?(currency)\s?)(?P<scale>bn|[kmbt])(?![^\W_]))?
    (?:\s?(?P<unit>%|[$€£¥₹]|
        (?:per\ ?cent|dollars?|euros?|pounds?|yen|rupees?|usd|eur|gbp|jpy|inr)(?![^\W_])))?
    (?![^\W_]|\.\d)
    |(?P<chunk>[^\W_]+(?:[{_MARKS}]+[^\W_]*)*(?:\.\d[^\W_]*)*(?:(?:\+{{1,2}}|\#)(?![^\W_]))?)
    """,
    re.VERBOSE,
)
_SCALES = {
    "k": 3,
    "thousand": 3,
    "m": 6,
    "million": 6,
    "b": 9,
    "bn": 9,
    "billion": 9,
    "t": 12,
    "trillion": 12,
}
"""Powers of ten."""
_UNITS = {"%": "%", "percent": "%", "per cent": "%", "$": "$", "us$": "$", "usd": "$", "dollar": "$"}
_UNITS |= {"€": "€", "eur": "€", "euro": "€", "£": "£", "gbp": "£", "pound": "£"}
_UNITS |= {"¥": "¥", "jpy": "¥", "yen": "¥", "₹": "₹", "inr": "₹", "rupee": "₹"}


@dataclass(frozen=True, slots=True)
class Token:
    """One token: a number has `value` and possibly a unit, the other kinds compare by `text`."""

    kind: Literal["number", "identifier", "word"]
    text: str
    value: Fraction | None = None
    unit: str | None = None

    def equals(self, other: "Token") -> bool:
        """Numbers: same value and units equal or one absent. Otherwise the same kind and text."""
        if self.kind != other.kind:
            return False
        if self.kind == "number":
            return self.value == other.value and (
                self.unit == other.unit or self.unit is None or other.unit is None
            )
        return self.text == other.text


def normalise(text: str) -> str:
    """NFKC, case-folded, one kind of dash, ISO dates written as `2024 march 12`, `2½` as `2 1/2`."""
    folded = _DASHES.sub("-", unicodedata.normalize("NFKC", unglued(text))).casefold()
    return _ISO_DATE.sub(lambda m: f"{m[1]} {MONTHS[int(m[2]) - 1]} {int(m[3])}", folded)


def tokenize(text: str) -> list[Token]:
    """Numbers, identifiers and words of a text, in order."""
    plain = _APOSTROPHES.sub("", normalise(text))
    return [_number(match) if match["digits"] else _chunk(match[0]) for match in _TOKEN.finditer(plain)]


def places(text: str, wanted: str) -> list[tuple[int, int]]:
    """Where a text holds the tokens of `wanted` one after the other: half-open ranges of characters.

    Empty also where normalising the text moves its characters, such as apostrophes.
    """
    plain = _APOSTROPHES.sub("", normalise(text))
    if len(plain) != len(text):
        return []
    matches, tokens, sought = [*_TOKEN.finditer(plain)], tokenize(plain), tokenize(wanted)
    starts = range(len(tokens) - len(sought) + 1) if sought else ()
    return [
        (matches[at].start(), matches[at + len(sought) - 1].end())
        for at in starts
        if tokens_equal(tokens[at : at + len(sought)], sought)
    ]


def _number(match: re.Match[str]) -> Token:
    digits = match["digits"].replace(",", "")
    if len(digits) > _MAX_DIGITS:
        return Token("identifier", digits)
    value = Fraction(digits) * 10 ** _SCALES.get(match["word"] or match["scale"] or "", 0)
    if "-" in (match["sign"], match["inner"]):
        value = -value
    unit = (match["unit"] or match["currency"] or "").strip().removesuffix("s")
    return Token("number", match[0].strip(), value, _UNITS.get(unit))


def _chunk(text: str) -> Token:
    named = not text.isalpha() and any(character.isdigit() or character in "+#" for character in text)
    return Token("identifier" if named else "word", text)


def tokens_equal(left: Sequence[Token], right: Sequence[Token]) -> bool:
    """Equal pairwise, in order."""
    return len(left) == len(right) and all(a.equals(b) for a, b in zip(left, right))


def same_numbers_and_identifiers(left: Iterable[Token], right: Iterable[Token]) -> bool:
    """Equal multisets of numbers and identifiers; a number without a unit may stand for any unit."""
    left, right = list(left), list(right)
    if _identifiers(left) != _identifiers(right):
        return False
    left_units, right_units = _units_by_value(left), _units_by_value(right)
    return left_units.keys() == right_units.keys() and all(
        _units_pair_up(left_units[value], right_units[value]) for value in left_units
    )


def _identifiers(tokens: Iterable[Token]) -> Counter[str]:
    return Counter(token.text for token in tokens if token.kind == "identifier")


def _units_by_value(tokens: Iterable[Token]) -> dict[Fraction, Counter[str | None]]:
    units: dict[Fraction, Counter[str | None]] = {}
    for token in tokens:
        if token.value is not None:
            units.setdefault(token.value, Counter())[token.unit] += 1
    return units


def _units_pair_up(left: Counter[str | None], right: Counter[str | None]) -> bool:
    if left.total() != right.total():
        return False
    left_only, right_only = left - right, right - left
    del left_only[None], right_only[None]
    return left_only.total() <= right[None] and right_only.total() <= left[None]


def token_f1(prediction: Sequence[Token], gold: Sequence[Token]) -> float:
    """F1 of the token multisets; numbers count by value, whatever their unit."""
    if not prediction or not gold:
        return 0.0
    common = Counter(map(_f1_key, prediction)) & Counter(map(_f1_key, gold))
    return 2 * common.total() / (len(prediction) + len(gold))


def _f1_key(token: Token) -> tuple[str, str | Fraction]:
    return (token.kind, token.text if token.value is None else token.value)


def contains(tokens: Sequence[Token], part: Sequence[Token]) -> bool:
    """Whether `part` occurs in `tokens` as a contiguous run; an empty part never does."""
    last = len(tokens) - len(part)
    return bool(part) and any(
        tokens_equal(tokens[start : start + len(part)], part) for start in range(last + 1)
    )


def stated(text: str, accepted: Iterable[str]) -> bool:
    """Whether an accepted answer stands in the text, case and spaces ignored."""
    flat = _flat(text)
    return any(_flat(answer) in flat for answer in accepted)


def _flat(text: str) -> str:
    return " ".join(text.casefold().split())


def answers_match(
    prediction: str,
    accepted: Sequence[str],
    mode: MatchMode = "exact_or_f1",
    f1_threshold: float = 0.75,
) -> bool:
    """Whether the prediction matches any accepted answer.

    `accepted_exact`: tokens equal. `exact_or_f1`: or token F1 at least the threshold with equal multisets of
    numbers and identifiers. `f1_or_substring`: or, under the same rule for numbers, the prediction holds the
    accepted answer as a run of whole tokens. An empty prediction never matches.
    """
    predicted = tokenize(prediction)
    return bool(predicted) and any(
        _matches(predicted, tokenize(answer), mode, f1_threshold) for answer in accepted
    )


def _matches(prediction: list[Token], gold: list[Token], mode: MatchMode, f1_threshold: float) -> bool:
    if tokens_equal(prediction, gold):
        return True
    if mode == "accepted_exact" or not same_numbers_and_identifiers(prediction, gold):
        return False
    if token_f1(prediction, gold) >= f1_threshold:
        return True
    return mode == "f1_or_substring" and contains(prediction, gold)
