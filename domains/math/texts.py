"""What the text of an answer tells without algebra: words, percent signs, units and the case of variables.

Called by `answers.py` before and after math-verify. Whatever is not certain here is left to math-verify.
"""

import re
from collections import Counter
from decimal import Decimal
from math import gcd
from typing import NamedTuple

from domains.math.typeset import SPACE

_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*[A-Za-z]")
_RUN = re.compile(r"[A-Za-z]+")
_LISTED = """
arccos arcsin arctan cos cosh cot csc exp frac gcd inf infty lcm lim ln log max min mod oo pi sec sin
sinh sqrt tan tanh
"""
_FUNCTIONS = frozenset(_LISTED.split())
_LISTED = """
no yes one two six ten odd even all any none both red mon tue wed thu fri sat sun jan feb mar apr jun jul aug
sep oct nov dec east west left right up down zero four five nine half the true false cat dog cow pig hen ant
bee day week year
"""
_SHORT = frozenset(_LISTED.split())
"""Answers that are too short to be told from a product of variables by their letters."""
_UNIT = (
    "km|cm|mm|nm|m|kg|mg|g|lbs?|oz|ft|in|yd|mi|mph|kph|km/h|ms|s|secs?|mins?|hrs?|hours?|h|days?|mL|ml|dL|cL|L|"
    "Hz|kHz|MHz|GHz|kWh|kW|MW|W|kJ|MJ|J|N|Pa|kPa|V|A|K|F|C|T|H|[kM]?eV|[kMG]B|mol|cal|kcal|"
    r"(?:[kM]\s*)?\\Omega|[kM]?ohms?|\\mu\s*(?:[mgsFCAVLH])|"
    "units?|cents?|dollars?|euros?|pounds?|inches|feet|box|boxes|cups?|"
    "miles|meters?|metres?|deg|USD|EUR|GBP|sq\\.? ?(?:ft|in|cm|m|km|mi|yd)\\.?"
)
_POWER = r"(?:\s*\^\s*(?:\{\s*[23]\s*\}|[23])|[²³23])?"
_UNITS = re.compile(
    rf"(?P<value>.*[\d}})])"
    rf"(?:{SPACE}|\s)+"
    rf"(?:(?:{_UNIT}){_POWER}(?:\s*(?:/|per\s)\s*(?:{_UNIT}){_POWER})?|(?P<names>[a-z]+(?: [a-z]+)*)"
    rf"|\\[dt]?frac\s*\{{\s*(?:{_UNIT}){_POWER}\s*\}}\s*\{{\s*(?:{_UNIT}){_POWER}\s*\}})\.?",
    re.DOTALL,
)
_MONEY = re.compile(
    r"(?:\A(?P<sign>-?)\$|\\\$|[\u20ac\u00a3\u00a5]|\\(?:pounds|euro)\b)\s*(?=[-\d.])"
    r"|(?<=\d)\s*(?:\\\$|[\u20ac\u00a3\u00a5\u00a2]|\\cents?\b)\Z"
)
_DEGREES = re.compile(
    rf"((?:[-+.,/\d\s{{}}]|\\[dt]?frac)*[\d}}])(?:{SPACE}|\s)*"
    r"(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree\b)\s*[CFK]?\s*"
)
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_DEGREE = re.compile(r"(\d+(?:\.\d+)?|\\[a-z]+|[A-Za-z])\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))")
_MANY = {
    "dozen": 12,
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_NUMBER_OF = re.compile(rf"(-?\d+(?:\.\d+)?)\s*(?:{SPACE})*\s*({'|'.join(_MANY)})\b(.*)", re.DOTALL)
_PERCENT = re.compile(r"\s*(?:\\?%|\b[Pp]er ?cent\b)")
_LISTED = "zero one two three four five six seven eight nine ten eleven twelve"
_BASES = _LISTED.split()
_SAID = re.compile(
    r"\A<answer>\s*(?P<inside>.*?)\s*</answer>\Z"
    r"|\A(?:the\s+)?(?:final\s+)?(?:answer|result)\s*(?:is\b\s*:?|:|=)\s*(?P<behind>\S.*?)\.?\Z"
    r"|\A(?:option|choice)\s+\(?(?P<chosen>[A-J])\)?\.?\Z|\A(?P<listed>[A-J])\)\Z",
    re.IGNORECASE,
)
"""How data sets and models say an answer around the bare one."""
_IN_BASE = re.compile(
    r"\(?(?P<digits>[0-9A-Z]+)\)?\s*(?:_|(?:in )?base )\s*(?:(?P<brace>\{)\s*(?:base\s*)?)?"
    rf"(?P<base>\d{{1,2}}|{'|'.join(_BASES[2:])})\s*(?(brace)\}})"
)
_TIME = re.compile(
    rf"(?P<hour>\d{{1,2}})(?::(?P<minute>[0-5]\d))?(?:{SPACE}|\s)*(?:(?P<half>[ap])\.?m\.?)?", re.IGNORECASE
)
_COLON = re.compile(r"\s*(?::|\\colon(?![A-Za-z]))\s*")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_APART = re.compile(r"(?<![A-Za-z\\}\d])[A-Za-z](?: +[A-Za-z])+(?![A-Za-z])")
_ENDS_IN = re.compile(
    r"(?P<head>(?:.*[=,;<>])?)(?P<last>[^=,;<>]*[\d}\s)]\s*(?P<run>[A-Za-z]{1,4}))\s*", re.DOTALL
)
_NO_TERM = re.compile(
    r"\\(?:in|cup|cap|to|p?mod|[lg](?:eq?|t)q?|neq?|approx|text|mbox|mid|l?dots|%)(?![A-Za-z])|\b(?:or|and)\b|[%:|]"
)
_COEFFICIENT = re.compile(r"(-?\d+(?:\.\d+)?) *([A-Za-z]{2,4})")
_LETTERS = re.compile(r"\(?[A-Ja-j]\)?|\(?[A-J]\)?(?:(?:\s|,|;|\band\b)*\(?[A-J]\)?)+")
_CHOICES = re.compile(r"\W*[A-Ja-j](?:\W+[A-Ja-j])*\W*")
_OPERATORS = re.compile(r"[-+*/^=<>|!_]")
_MARKS = re.compile(
    r"[A-Za-z)}]'+|\^(?:T(?![A-Za-z])|\{T\})|\\[dt]?frac(?P<derivative>\{d[A-Za-z]\}\{d[A-Za-z]\})"
)
"""Primes of functions, transposes and derivatives, in a text without blanks."""
_ANGLE = re.compile(r"\\angle\{?[A-Z]([A-Z])[A-Z](?![A-Za-z])")
"""The vertex of an angle of three points."""
_QUOTED = re.compile(r"[`'\"]+(.*?)['\"]+", re.DOTALL)
_RELATION = re.compile(r"[<>]|\\(?:[lg](?:eq?|t)q?|[lg]eqslant)(?![A-Za-z])")
_SIZED = re.compile(r"\\(?:left|right)(?![A-Za-z])\s*")
_NAMED = re.compile(r"\A(?:[A-Za-z]\w*|\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])*\s*\))\s*(?:=|\\in(?![A-Za-z]))\s*")
_BUILT = re.compile(r"[|:]|\\(?:mid|colon|vert)(?![A-Za-z])")
_BRACKET = re.compile(r"\\[{}]|[][(){},]")
_JOINED = re.compile(r"(?<![A-Za-z])(?:(?P<both>and|land|wedge)|or|lor|vee)(?![A-Za-z])")


_SAID_IN_WORDS = {
    **dict.fromkeys(
        ("all real numbers", "all reals", "the real numbers", "the set of real numbers"), r"\mathbb{R}"
    ),
    **dict.fromkeys(("no solution", "no solutions", "the empty set", "empty set"), r"\emptyset"),
    **dict.fromkeys(("infinity", "positive infinity"), r"\infty"),
    **dict.fromkeys(("negative infinity", "minus infinity"), r"-\infty"),
    "dne": "does not exist",
}
"""Words that mean a sign, or other words."""


def in_signs(text: str) -> str | None:
    """`\\emptyset` of `no solution`; None of what has no sign."""
    return _SAID_IN_WORDS.get(" ".join(text.lower().split()))


def bare(text: str) -> str | None:
    """`5` of `The answer is 5.`; None of what is said in no such way."""
    said = _SAID.match(text)
    return said and next(part for part in said.groups() if part is not None)


def is_word(run: str) -> bool:
    """Whether letters that stand together are certainly a word, and no product of variables such as `xyz`."""
    low = run.lower()
    if low in _SHORT:
        return True
    if low in _FUNCTIONS or not set(low) & set("aeiou"):
        return False
    # Products are written in the order of the alphabet, and variables of one product have one case.
    return len(run) > 4 or (len(run) == 4 and [*low] != sorted(low) and not run.isupper()) or _is_name(run)


def _is_name(run: str) -> bool:
    """`Sam`: a capital and small letters, a vowel among them."""
    return len(run) > 2 and run[0].isupper() and run[1:].islower() and bool(set(run[1:]) & set("aeiou"))


def chosen_letters(text: str) -> list[str] | None:
    """The choices that a text names, `A, C` and `AC` and `(A) and (C)`; None where it may be something else."""
    found = _LETTERS.fullmatch(text) and re.findall(r"(?<![a-z])[A-Ja-j](?![a-z])", text)
    return sorted({letter.upper() for letter in found}) if found and len(set(found)) == len(found) else None


def words(text: str, marked: bool = False) -> str | None:
    """The text without the case of its words, if it certainly consists of words; else None.

    `p-q`, `xy` and `x or y` may be expressions. `marked`: it stood in a text command, so it is none.
    """
    if _WORDS.fullmatch(text) is None:
        return None
    runs = _RUN.findall(text)
    if not marked and (not any(map(is_word, runs)) or any(run.lower() in _FUNCTIONS for run in runs)):
        return None
    # A letter of its own may be a variable, in whose name the case counts; not the article in front.
    folded = _RUN.sub(lambda run: run[0] if len(run[0]) == 1 else run[0].lower(), text)
    article = folded.startswith("A ") and len(runs) > 1 and len(runs[1]) > 2 and runs[1].lower() != "and"
    return "a" + folded[1:] if article else folded


def long_enough(text: str) -> bool:
    """Whether no part of a text of letters is as short as a variable, or as two."""
    return all(len(run) > 2 for run in _RUN.findall(text))


class Measured(NamedTuple):
    """A value without percent signs and units."""

    value: str
    percent: bool
    changed: bool


def in_base(text: str) -> tuple[str, int] | None:
    """Digits and base of a number such as `4210_{5}`, `1011_{two}` or `2A_{base 16}`; else None."""
    found = _IN_BASE.fullmatch(text)
    if found is None:
        return None
    base = found["base"].lower()
    return found["digits"].upper(), int(base) if base.isdigit() else _BASES.index(base)


def same_time(wanted: str, given: str) -> bool | None:
    """Whether two times of day are one, `3:00 pm` and `3 p.m.`; None where the first is none for certain.

    `pm` on one side only does not count, as a unit. `12:30` can be no ratio in lowest terms; `3:10` may be
    one, beside what is no time.
    """
    ours, theirs = _TIME.fullmatch(wanted), _TIME.fullmatch(given)
    if ours is None or (theirs is None and _RUN.search(_COMMAND.sub("", given))):
        return None
    found = [one for one in (ours, theirs) if one is not None]
    minutes = [one["minute"] for one in found if one["minute"]]
    reduced = gcd(int(ours["hour"]), int(ours["minute"] or 1)) == 1
    certain = len(minutes) == 2 or any(one[0] == "0" for one in minutes) or any(one["half"] for one in found)
    if reduced and not certain:
        return None
    halves = {one["half"].lower() for one in found if one["half"]}
    read = {(int(one["hour"]), int(one["minute"] or 0)) for one in found}
    return theirs is not None and len(read) == 1 and len(halves) < 2


def proportions(wanted: str, given: str) -> tuple[str, str]:
    """Both sides; ratios of three parts and more as tuples. math-verify makes one quotient of all parts."""
    parts = _COLON.split(wanted.strip(" $")), _COLON.split(given.strip(" $"))
    if min(map(len, parts)) < 3:
        return wanted, given
    ours, theirs = (f"({', '.join(one)})" for one in parts)
    return ours, theirs


def measured(text: str, other: str = "") -> Measured:
    """`60\\%` is 60 with a percent sign, `12 cm^2` and `\\$12` are 12, `2 million` is 2,000,000.

    What has no number before its unit stays. Beside an `other` without a letter, `eggs` and `men` are what is
    counted too: an answer with variables would be wrong in any case.
    """
    bare = _MONEY.sub(lambda sign: sign["sign"] or "", text)
    bare = angle[1] if (angle := _DEGREES.fullmatch(bare)) is not None else bare
    if (many := _NUMBER_OF.fullmatch(bare)) is not None:
        bare = f"{Decimal(many[1]) * _MANY[many[2]]:f}{many[3]}"
    value = _PERCENT.sub("", bare).strip()
    percent = value != bare.strip() and bool(value)
    value = value if percent else bare
    found = _UNITS.fullmatch(value)
    counted = not _RUN.search(other) and bool(other)
    if found is not None and (found["names"] is None or _names(found["names"], counted)):
        value = found["value"].strip()
    return Measured(value, percent, value != text)


def _names(names: str, counted: bool) -> bool:
    """Whether small words behind a number say what it counts: `dollars per hour`, not `abc`."""
    said = names.split()
    if counted and len(said) == 1 and said[0] not in _FUNCTIONS:
        # Each variable of a product is written once, in the order of the alphabet.
        return len(said[0]) > 2 and [*said[0]] != sorted(set(said[0]))
    plain = ("per", "of", "sq", "cubic", "an", *(["old", "left", "ago", "away"] if counted else []))
    return all(is_word(run) or run in plain for run in said)


def in_terms(text: str, other: str) -> str:
    """An expression in brackets if it ends with a variable, which math-verify takes for a unit: 5 of `2+3t`.

    `2t` may be a number with a unit beside an `other` without letters.
    """
    found = _ENDS_IN.fullmatch(text)
    if found is None or _NO_TERM.search(text):
        return text
    run, before = found["run"], _COMMAND.sub(" ", found["last"].rstrip()[: -len(found["run"])])
    if is_word(run) or (len(run) > 1 and re.fullmatch(_UNIT, run)) or before.count("(") != before.count(")"):
        return text
    alone = not _RUN.search(before) and not re.search(r"\S\s*[-+]", before)
    if alone and (re.fullmatch(_UNIT, run) or not _RUN.search(_COMMAND.sub("", other))):
        return text
    return f"{found['head']}({found['last']})"


def radians(text: str) -> str:
    """Degrees within `\\sin 30^\\circ` as parts of pi; math-verify would take the sine of 30."""
    return _DEGREE.sub(r"(\\frac{\1\\pi}{180})", text) if _TRIGONOMETRIC.search(text) else text


def product(text: str) -> str:
    """Variables of a product written close together; math-verify takes some of them for units."""
    close = _APART.sub(lambda found: "".join(found[0].split()), text)
    found = _COEFFICIENT.fullmatch(close)
    if found is None or re.fullmatch(_UNIT, found[2]) or is_word(found[2]):
        return close
    return r" \cdot ".join((found[1], *found[2]))


def other_case(wanted: str, given: str) -> bool:
    """Whether a variable of an expression is written in the other case only: `P - Q` for `p - q`.

    math-verify does not tell the two apart. Letters of their own, such as choices, are left to it.
    """
    ours, theirs = _letters(wanted), _letters(given)
    if _CHOICES.fullmatch(wanted) and _OPERATORS.search(wanted) is None:
        return False
    return any(one[0].swapcase() + one[1:] in theirs and one not in theirs for one in ours)


def other_marks(wanted: str, given: str) -> bool:
    """Whether two expressions differ in marks that math-verify does not see.

    These are primes (`y''` for `y'`), transposes, the vertex of an angle, which variable is differentiated,
    and `and` for `or` between inequalities. If one side alone is an equation, its right side is compared.
    """
    ours, theirs = _bare(wanted), _bare(given)
    vertices = [set(_ANGLE.findall("".join(side.split()))) for side in (ours, theirs)]
    if all(vertices) and vertices[0] != vertices[1]:
        return True
    if _RELATION.search(ours) and _RELATION.search(theirs):
        joined = [{one["both"] is not None for one in _JOINED.finditer(side)} for side in (ours, theirs)]
        if all(joined) and joined[0] != joined[1]:
            return True
    if ("=" in ours) != ("=" in theirs):
        ours, theirs = ours.rpartition("=")[2], theirs.rpartition("=")[2]
    return _marks(ours) != _marks(theirs)


def other_brackets(wanted: str, given: str) -> bool:
    """Whether one side is a set, `\\{1, 2\\}`, where the other has an order, as `(1, 2)` and `[1, 2]` have.

    math-verify takes a set for a tuple or an interval. A list without brackets, and a set or a tuple of one
    value, may be either. So it is with the parts of both sides, as of `\\{1, 2\\}, \\{3, 4\\}`.
    """
    (ours, parts), (theirs, others) = _grouped(wanted), _grouped(given)
    if ours and theirs and ours != theirs:
        return True
    kinds = [{kind for part in one if (kind := _grouped(part)[0])} for one in (parts, others)]
    return all(kinds) and kinds[0] != kinds[1]


def other_order(wanted: str, given: str) -> bool:
    """Whether values without names stand in another order than those with names: `2, 1` for `x=1, y=2`.

    math-verify compares both as sets. Solutions of one variable, `x=1, x=2`, have no order.
    """
    named, bare = wanted, given
    if "=" in bare and "=" not in named:
        named, bare = bare, named
    if "=" in bare:
        return False
    pairs = [part.partition("=") for part in _parts(named)]
    values = [value.strip() for _, _, value in pairs]
    names = {name.strip() for name, _, _ in pairs}
    others = [one.strip() for one in _parts(_inside(bare.strip()) or bare)]
    known = len(pairs) > 1 and "" not in values and len(names) == len(pairs) == len(others)
    return known and values != others and sorted(values) == sorted(others)


def _grouped(text: str) -> tuple[str, list[str]]:
    """`set`, `ordered`, or nothing for a text without brackets around it; and its parts."""
    value = _NAMED.sub("", _SIZED.sub("", text).strip(" $")).strip()
    inside, parts = _inside(value), _parts(value)
    if inside is None or len(parts) != 1:
        return "", parts
    within = _parts(inside)
    if len(within) == 1:
        return _grouped(inside)
    if not value.startswith("\\"):
        return "ordered", within
    return ("", []) if _BUILT.search(inside) else ("set", within)


def _inside(value: str) -> str | None:
    """What stands in the brackets around a text; None where they do not end it, or there are none."""
    opening = _BRACKET.match(value)
    closing = value.endswith((")", "]", r"\}"))
    if opening is None or not closing or opening[0] not in ("(", "[", r"\{"):
        return None
    depth = 0
    for sign in _BRACKET.finditer(value):
        depth += _deeper(sign[0])
        if depth == 0:
            return value[opening.end() : sign.start()] if sign.end() == len(value) else None
    return None


def _parts(value: str) -> list[str]:
    """A text between its commas that no bracket holds."""
    depth, start, found = 0, 0, list[str]()
    for sign in _BRACKET.finditer(value):
        if sign[0] == "," and depth == 0:
            found.append(value[start : sign.start()])
            start = sign.end()
        depth += _deeper(sign[0])
    return [*found, value[start:]]


def _deeper(sign: str) -> int:
    return 0 if sign == "," else 1 if sign[-1] in "([{" else -1


def _bare(text: str) -> str:
    quoted = _QUOTED.fullmatch(text.strip())
    return quoted[1] if quoted else text


def _marks(text: str) -> Counter[str]:
    found = _MARKS.finditer("".join(text.split()))
    return Counter(one["derivative"] or one[0].replace("{T}", "T") for one in found)


def _letters(text: str) -> set[str]:
    """Letters of their own, and names of commands, such as those of Greek letters."""
    letters = {character for character in _COMMAND.sub(" ", text) if character.isalpha()}
    return letters | {command[1:] for command in _COMMAND.findall(text)}
