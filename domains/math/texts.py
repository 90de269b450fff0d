"""What the text of an answer tells without algebra: words, choices, numbers with a base and times of day.

Called by `answers.py` before anything is read as mathematics. Whatever is not certain here is left to that.
"""

import re
from math import gcd

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
_LISTED = "zero one two three four five six seven eight nine ten eleven twelve"
_BASES = _LISTED.split()
_SAID = re.compile(
    r"\A<answer>\s*(?P<inside>.*?)\s*</answer>\Z"
    r"|\A(?:the\s+)?(?:final\s+)?(?:answer|result)\s*(?:is\b\s*:?|:|=)\s*(?P<behind>\S.*?)\.?\Z"
    r"|\A(?:exactly|approximately|about)\s+(?P<about>\S.*)\Z"
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
_COMMAND = re.compile(r"\\[A-Za-z]+")
_LETTERS = re.compile(r"\(?[A-J]\)?(?:(?:\s|,|;|\band\b)*\(?[A-J]\)?)*")
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
    """The choices that a text names, as `A, C`, `AC` or `(A) and (C)`; None of anything else."""
    text = text.upper() if len(text) == 1 else text
    found = _LETTERS.fullmatch(text) and re.findall(r"[A-J]", text)
    return sorted(found) if found and len(set(found)) == len(found) else None


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


def in_base(text: str) -> tuple[str, int] | None:
    """Digits and base of a number such as `4210_{5}`, `1011_{two}` or `2A_{base 16}`; else None."""
    found = _IN_BASE.fullmatch(text)
    if found is None:
        return None
    digits, said = found["digits"].upper(), found["base"].lower()
    base = int(said) if said.isdigit() else _BASES.index(said)
    return (digits, base) if all(int(digit, 36) < base for digit in digits) else None


def same_time(wanted: str, given: str) -> bool | None:
    """Whether two times of day are one, `3:00 pm` and `15:00`; None where the first is none for certain.

    `pm` on one side only does not count, as a unit. `12:30` can be no ratio in lowest terms; `3:10` may be
    one, beside what is no time.
    """
    ours, theirs = _TIME.fullmatch(wanted), _TIME.fullmatch(given)
    if ours is None or (theirs is None and _RUN.search(_COMMAND.sub("", given))):
        return None
    found = [one for one in (ours, theirs) if one is not None]
    minutes = [one["minute"] for one in found if one["minute"]]
    reduced = gcd(int(ours["hour"]), int(ours["minute"] or 1)) == 1
    certain = any(one[0] == "0" for one in minutes) or any(one["half"] for one in found)
    if reduced and not certain:
        return None
    if theirs is None:
        return False
    if not ours["half"] and not theirs["half"]:
        return _minutes(ours)[:1] == _minutes(theirs)[:1]
    return not set(_minutes(ours)).isdisjoint(_minutes(theirs))


def _minutes(time: re.Match[str]) -> list[int]:
    """The minutes since midnight that a time may be: two of `7:30`, one of `7:30 pm` and of `19:30`."""
    hour, minute = int(time["hour"]), int(time["minute"] or 0)
    if time["half"]:
        hour = hour % 12 + 12 * (time["half"].lower() == "p")
    found = [60 * hour + minute]
    return found if time["half"] or not 0 < hour < 13 else [*found, 60 * ((hour + 12) % 24) + minute]


def other_case(wanted: str, given: str) -> bool:
    """Whether a variable of an expression is written in the other case only: `P - Q` for `p - q`.

    math-verify does not tell the two apart. Letters of their own, such as choices, are left to it.
    """
    ours, theirs = _letters(wanted), _letters(given)
    return any(one[0].swapcase() + one[1:] in theirs and one not in theirs for one in ours)


def _letters(text: str) -> set[str]:
    """Letters of their own, and names of commands, such as those of Greek letters."""
    letters = {character for character in _COMMAND.sub(" ", text) if character.isalpha()}
    return letters | {command[1:] for command in _COMMAND.findall(text)}
