"""Is a written answer right? Pure functions; `verify_answer` may run for ever and belongs into a worker.

math-verify (https://github.com/huggingface/Math-Verify) compares expressions. What it cannot know is decided
here: which part of a text is the answer, and that words are compared as words (as an expression "blue" would
equal "lube").
"""

import re
from functools import cache
from typing import Any

from domains.math.rewards import AnswerStatus
from pipelinerl.base.thoughts import answer_part

BOXED = "\\boxed"
MAX_PREDICTION_LENGTH = 1000
"""Characters of a boxed answer that are looked at."""
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*[A-Za-z]")
_SYMBOLS = frozenset({"pi", "infty", "inf", "oo", "sin", "cos", "tan", "log", "ln", "exp", "sqrt", "frac"})
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox)\s*\{([^{}]*)\}")


def last_boxed(text: str) -> str | None:
    """What stands in the last `\\boxed{...}`, braces matched; None without one, or where it does not end."""
    start = text.rfind(BOXED)
    if start < 0:
        return None
    rest = text[start + len(BOXED) :].lstrip()
    if not rest.startswith("{"):
        return None
    depth = 0
    for position, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:position]
    return None


def plain(answer: str) -> str:
    """An answer without what never changes its meaning: dollar signs, text commands, blanks, a full stop."""
    unwrapped = _TEXT.sub(r"\1", answer.strip().strip("$").strip())
    return " ".join(unwrapped.split()).removesuffix(".").strip()


def _letters(answer: str) -> str | None:
    """The answer in lower case if it is one of words, such as a name; None for an expression."""
    return answer.casefold() if _WORDS.fullmatch(answer) and answer.casefold() not in _SYMBOLS else None


def extracted(prediction: str, max_prediction_length: int = MAX_PREDICTION_LENGTH) -> str | AnswerStatus:
    """The answer boxed behind the thoughts, as it was written, or the status of a text that has none."""
    shown = answer_part(prediction)
    if BOXED not in shown:
        return "no_answer"
    answer = last_boxed(shown)
    if answer is None or not answer.strip() or len(answer) > max_prediction_length:
        return "unparsable"
    return answer


def quick_status(answer: str, gold: str) -> AnswerStatus | None:
    """The status where comparing texts decides it; None where expressions must be compared."""
    given, wanted = plain(answer), plain(gold)
    if given == wanted:
        return "correct"
    if (words := _letters(wanted)) is not None:
        return "correct" if plain(given).casefold() == words else "wrong"
    return None


@cache
def _math_verify() -> Any:
    import logging

    import math_verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return math_verify


def compare(answer: str, gold: str, strict: bool = True) -> AnswerStatus:
    """Compare two expressions with math-verify. Whoever calls it must be able to stop it from outside."""
    library = _math_verify()
    try:
        wanted = library.parse(f"{BOXED}{{{plain(gold)}}}", parsing_timeout=None)
        given = library.parse(f"{BOXED}{{{answer}}}", parsing_timeout=None)
        if all(isinstance(item, str) for item in given):  # nothing but the text itself was found
            return "unparsable"
        same = library.verify(wanted, given, strict=strict, timeout_seconds=None)
    except (Exception, RecursionError, MemoryError):  # whatever a hostile expression brings down
        return "unparsable"
    return "correct" if same else "wrong"


def verify_answer(
    prediction: str, gold: str, strict: bool = True, max_prediction_length: int = MAX_PREDICTION_LENGTH
) -> AnswerStatus:
    """Status of the last boxed answer in `prediction`: correct, wrong, no_answer or unparsable.

    Without a deadline: an answer such as `10^{10^{10}}` may take for ever. `VerifierPool` has one.
    """
    answer = extracted(prediction, max_prediction_length)
    if answer in ("no_answer", "unparsable"):
        return answer  # type: ignore[return-value]
    return quick_status(answer, gold) or compare(answer, gold, strict)
