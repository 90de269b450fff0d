"""Is a written answer right? Pure functions; `verify_answer` may run for ever and belongs into a worker.

Here it is decided which part of a text is the answer, and that words are compared as words (as a product of
letters "blue" would equal "lube"). `objects.py` reads and compares everything else. What it cannot read, such
as an integral, goes to math-verify (https://github.com/huggingface/Math-Verify).
"""

import re
from functools import cache
from typing import Any

from domains.math.comparison import same
from domains.math.objects import read
from domains.math.rewards import AnswerStatus
from domains.math.texts import (
    bare,
    chosen_letters,
    in_base,
    in_signs,
    long_enough,
    other_case,
    same_time,
    words,
)
from domains.math.typeset import FONT, closing_brace, typeset
from domains.math.values import Unreadable
from pipelinerl.base.thoughts import answer_part

BOXED = "\\boxed"
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_MATH_END = re.compile(r"(?<!\\)\$|\\\)|\\\]|\n")
_AND = re.compile(
    r"(?:[\s$]|\\[()\[\];:! ]|\\q?quad\b)*(?:\\?,|and\b|\\text\s*\{[\s,]*and\s*\})"
    r"(?:[\s$,]|\\[()\[\],;:! ]|\\q?quad\b|and\b|\\text\s*\{\s*and\s*\})*"
)
"""What stands between boxes of one answer, as in `$\\boxed{2}$ and $\\boxed{3}$`. Not `*+`: up to 3.11.4
Python does not take back what the last round of such a group read before it failed, here a backslash.
"""
GSM8K_MARK = "####"
MAX_PREDICTION_LENGTH = 1000
"""Characters of a boxed answer that are looked at."""
_DOLLARS = re.compile(r"\A\$+|(?<!\\)(?<!(?<!\\)\$)\$+\Z")
"""At the end from the first of a run on: tried from each, a long run in the middle takes quadratic time."""
_CHOSEN = re.compile(
    r"(?:(?i:option|choice|answer)[\s:]+)?"
    r"\(?([A-J])(?:\)?|(?:\)|(?=[:.]\W))[:.]?+(?:(?:\s|\\[ ,;:])*+"
    r"(?P<says>(?![-+*/^=(,;]|(?:and|or)\b\W*[A-J]\b)\S.*))?)"
)
"""A choice with what it says behind it: `\\textbf{(C) }5` and `C. 5` choose C, and are no product. Of two
choices, as in `(C) or (D)`, none is chosen."""
_NUMBER_IN_TEXT = re.compile(r"\\text\s*\{[^{}]*\d")
"""As in `3\\text{ boys and 2 girls}`: math-verify drops the words, and would read 3."""
_DEGENERATE = re.compile(r"\\partial(?![a-z])|\b(?:gcd|lcm)\b")
"""math-verify takes letters for independent: `\\partial f/\\partial x` would be 0 and `\\gcd m` 1."""
_TEXT = re.compile(rf"{FONT}\s*\{{([^{{}}]*)\}}")


def has_box(text: str) -> bool:
    """Whether a text boxes anything, by `\\boxed` or `\\fbox`."""
    return _BOX.search(text) is not None


def last_boxed(text: str) -> str | None:
    """What stands in the last box: `\\boxed{...}` or `\\fbox{...}`, braces matched, or `\\boxed 5`.

    Without a brace the box reaches to the end of the formula that it stands in, outside of one to the next
    blank. Boxes between which only a comma or "and" stands are one answer, `2, 3`. None without a box, or
    where it is empty or does not end.
    """
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    box = boxes.pop()
    rest = text[box.end() :].lstrip()
    if not rest.startswith("{"):
        end = _MATH_END.search(rest) if _in_formula(text[: box.start()]) else None
        bare = rest[: end.start()] if end else "".join(rest.split(None, 1)[:1])
        return bare.strip().rstrip(".,;:") or None
    if (last := _in_braces(rest)) is None:
        return None
    answers = [last]
    for before in reversed(boxes):
        rest = text[before.end() : box.start()].lstrip()
        inside = _in_braces(rest)
        if not inside or not inside.strip() or _AND.fullmatch(rest[len(inside) + 2 :]) is None:
            break
        answers.append(inside)
        box = before
    return ", ".join(dict.fromkeys(reversed(answers)))


def _in_braces(text: str) -> str | None:
    """What the brace with which a text begins holds; None where it does not close, or none begins it."""
    end = closing_brace(text) if text.startswith("{") else -1
    return text[1:end] if end > 0 else None


def _in_formula(before: str) -> bool:
    """Whether a formula is open behind this text."""
    if any(before.rfind(start) > before.rfind(end) for start, end in ((r"\(", r"\)"), (r"\[", r"\]"))):
        return True
    return len(re.findall(r"(?<!\\)\$+", before)) % 2 == 1


def plain(answer: str) -> str:
    """An answer without what never changes its meaning: dollar signs, text commands, blanks, a full stop."""
    unwrapped = _TEXT.sub(r"\1", _DOLLARS.sub("", answer.strip()).strip())
    return " ".join(unwrapped.split()).removesuffix(".").strip()


def extracted(prediction: str, max_prediction_length: int = MAX_PREDICTION_LENGTH) -> str | AnswerStatus:
    """The answer boxed behind the thoughts, as it was written, or the status of a text that has none."""
    shown = answer_part(prediction)
    if not has_box(shown):
        return "no_answer"
    answer = last_boxed(shown)
    if answer is None or not answer.strip() or len(answer) > max_prediction_length:
        return "unparsable"
    return answer


def stated(gold: str) -> str:
    """The result of a gold answer: behind GSM8K's mark, in its last box, behind "the answer is", or all.

    Loaders written for other trainers box the gold answer, give the whole solution or say it in a sentence.
    """
    said = gold.rpartition(GSM8K_MARK)[2]
    return last_boxed(said) or bare(plain(said)) or said


def quick_status(answer: str, gold: str) -> AnswerStatus | None:
    """The status where comparing texts decides it; None where expressions must be compared."""
    answer, gold = _given(answer), typeset(gold)
    given, wanted = plain(answer), plain(gold)
    if given == wanted or given == plain(_wanted(gold)):
        return "correct"
    if not wanted.islower() and (letters := chosen_letters(wanted)) and letters == chosen_letters(given):
        return "correct"
    choice, chosen = _CHOSEN.fullmatch(wanted), _CHOSEN.fullmatch(given)
    if choice is not None and chosen is not None:
        return "correct" if choice[1] == chosen[1] else "wrong"
    wanted = plain(gold := _wanted(gold))
    marked = _in_text(gold) or (_in_text(answer) and long_enough(wanted))
    if (told := words(wanted, marked)) is not None:
        return "correct" if words(given, marked=True) == told else "wrong"
    return None


def _given(answer: str) -> str:
    """An answer typeset, without what says that it is one: `5` of `\\text{The answer is }5`."""
    written = typeset(answer)
    written = bare(plain(written)) or written
    return in_signs(plain(written)) or written


def _wanted(gold: str) -> str:
    """A gold answer without the letter of a choice that says what it stands for: `5` of `(C) 5`."""
    choice = _CHOSEN.fullmatch(plain(gold))
    said = (choice and choice["says"]) or gold
    return in_signs(plain(said)) or said


def _counted(answer: str) -> str:
    """`2 and 3` of `\\text{2 and 3}`, which are no words."""
    return plain(answer) if _in_text(answer) and any(map(str.isdigit, answer)) else answer


def _in_text(answer: str) -> bool:
    return _TEXT.fullmatch(_DOLLARS.sub("", answer.strip()).strip()) is not None


@cache
def _math_verify() -> Any:
    import logging

    import math_verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return math_verify


def compare(answer: str, gold: str, strict: bool = True) -> AnswerStatus:
    """Compare two objects; math-verify is asked about what is not read here, and may run for ever."""
    answer, gold = _counted(_given(answer)), _counted(_wanted(typeset(gold)))
    based = in_base(plain(gold)), in_base(plain(answer))
    if based[0] is not None:
        return "correct" if plain(answer) == based[0][0] or based[0] == based[1] else "wrong"
    if (one_time := same_time(plain(gold), plain(answer))) is not None:
        return "correct" if one_time else "wrong"
    try:
        try:
            if any(same(one, other) for one in read(gold) for other in read(answer, gold)):
                return "correct"
            if strict:
                return "wrong"
        except Unreadable:
            pass
        status = _compared(gold, answer, strict)
    except (Exception, RecursionError, MemoryError):  # `TooLarge`, or what a hostile expression brings down
        return "unparsable"
    return "wrong" if status == "correct" and other_case(gold, answer) else status


def _compared(wanted: str, given: str, strict: bool) -> AnswerStatus:
    """What math-verify says of two texts that it reads as a whole."""
    if any(one.search(text) for one in (_NUMBER_IN_TEXT, _DEGENERATE) for text in (wanted, given)):
        return "unparsable"
    library = _math_verify()
    ours, theirs = (_parsed(text) for text in (wanted, given))
    if theirs is None:
        return "unparsable"
    same = library.verify(ours or [], theirs, strict=strict, timeout_seconds=None)
    return "correct" if same else "wrong"


def _parsed(text: str) -> list[Any] | None:
    library = _math_verify()
    ways = [library.LatexExtractionConfig()]
    found: list[Any] = library.parse(f"{BOXED}{{{text}}}", extraction_config=ways, parsing_timeout=None)
    return None if all(isinstance(item, str) for item in found) else found


def verify_answer(
    prediction: str, gold: str, strict: bool = True, max_prediction_length: int = MAX_PREDICTION_LENGTH
) -> AnswerStatus:
    """Status of the last boxed answer in `prediction`: correct, wrong, no_answer or unparsable.

    Without a deadline: an answer such as `10^{10^{10}}` may take for ever. `VerifierPool` has one.
    """
    answer = extracted(prediction, max_prediction_length)
    if answer in ("no_answer", "unparsable"):
        return answer  # type: ignore[return-value]
    gold = stated(gold)
    return quick_status(answer, gold) or compare(answer, gold, strict)
