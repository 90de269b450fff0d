"""Which part of a completion is the answer. Pure functions, called in the processes that score."""

import re
from typing import Literal, get_args

from pipelinerl.base.thoughts import answer_part

AnswerFormat = Literal["auto", "tag", "last_number", "last_word", "text"]
FORMATS: tuple[AnswerFormat, ...] = get_args(AnswerFormat)
_OPEN, _CLOSE = "<answer>", "</answer>"
_NUMBER = re.compile(r"(?:(?<![\w.)\]])-)?(?:\d+(?:,\d{3})*(?:\.\d+)?|(?<![\w.)\]])\.\d+)")
"""`.5` is a number too. A minus sign belongs to one unless it stands between two operands, as in 7-5."""
_WORD = re.compile(r"[^\W\d_]+")


def extract_answer(completion: str, answer_format: AnswerFormat, right: str | None = None) -> str | None:
    """The answer that a completion gives behind its thoughts, or None if it gives none in this format.

    `tag`: what stands between the last `<answer>` and `</answer>`. `last_number`, `last_word`: the last one
    of the completion. `text`: all of it. `auto`: the tag; in a completion without one the last number where
    the right answer is a number, the last word where it is a single word, else all of it.
    """
    completion = answer_part(completion)
    if answer_format == "auto":
        tagged = extract_answer(completion, "tag")
        return extract_answer(completion, _like(right)) if tagged is None else tagged
    if answer_format == "tag":
        found = [tagged] if (tagged := _last_tagged(completion)) is not None else []
    elif answer_format == "last_number":
        numbers = _NUMBER.findall(completion.replace("\u2212", "-"))
        found = [re.sub(r"^(-?)\.", r"\g<1>0.", number.replace(",", "")) for number in numbers]
    elif answer_format == "last_word":
        found = _WORD.findall(completion)
    else:
        found = [completion.strip()]
    return found[-1] or None if found else None


def _last_tagged(completion: str) -> str | None:
    """What stands in the last tag that is closed. No expression: one would try every opening to the end."""
    start = completion.rfind(_OPEN, 0, max(completion.rfind(_CLOSE), 0))
    if start < 0:
        return None
    start += len(_OPEN)
    return completion[start : completion.index(_CLOSE, start)].strip()


def in_format(answer: str, answer_format: AnswerFormat) -> str:
    """A completion that says nothing but `answer`; the formats without a tag read it as it stands."""
    return f"{_OPEN}{answer}{_CLOSE}" if answer_format == "tag" else answer


def _like(right: str | None) -> AnswerFormat:
    if right is None:
        return "text"
    if _NUMBER.fullmatch(right.strip()):
        return "last_number"
    return "last_word" if _WORD.fullmatch(right.strip()) else "text"
