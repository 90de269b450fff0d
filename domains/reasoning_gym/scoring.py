"""A completion as a score, in a process that may be killed: some families search, and some parse expressions.

`judge` is what the workers of `domains/pool.py` call, for the rollouts of one actor worker.
"""

import re
from fractions import Fraction
from typing import Any

from domains.pool import JudgePool
from domains.reasoning_gym.answers import AnswerFormat, extract_answer
from domains.reasoning_gym.families import cached, entry
from domains.short_answers import undressed

PARSED = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
"""Families that read answers with sympy's parser, which evaluates them as Python."""
_EXPRESSION = re.compile(
    r"(?:[\d\s+\-*/^().,=]|\b(?:[A-Za-z]|a?(?:sin|cos|tan)h?|exp|log|ln|sqrt|pi|Integral)\b)*", re.ASCII
)
"""What may reach that parser: no names but variables and functions of mathematics, no text, no brackets."""

EXACT = frozenset({"game_of_life_halting"})
"""Families whose verifier calls every text right; here an answer has to be the text that they give."""

_NO_NUMBER = re.compile(r"\bnan[ij]?\b", re.IGNORECASE)
"""A distance to it is smaller than every limit for a verifier that takes the smaller of two numbers."""
COIN_FLIP_TOLERANCE = 1e-4
"""As in the family, which then counts equal first digits: of the answer 0 all are."""
_SAME_TEXT = frozenset({"letter_jumble", "spell_backward", "word_sorting"})
"""Families whose verifier reads no further than the right answer goes, whatever stands behind it."""
_SIGNED = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)

RIGHT = 0.999
"""Scores of right answers; a few families build 1.0 from fractions."""
NEARLY = 0.99
"""The most that an answer which is not right can have of a family that gives credit for parts."""

FIRST = ("chain_sum", "{}", 1, 0, None, "1", "text")
"""A question that is quickly scored, so that a worker has loaded the library before its first deadline."""


def judge(
    task: str, options: str, seed: int, index: int, question: str | None, completion: str, form: AnswerFormat
) -> tuple[float | None, bool] | str:
    """Score from 0 to 1, and whether the completion has an answer in this form; without one the score is 0.

    The score is None where the family's own verifier fails at the answer. A text says why nothing can be
    scored: the family makes another question here than the one that was asked.
    """
    item = entry(task, options, seed, index)
    if question is not None and item["question"] != question:
        return f"family {task}: seed {seed}, index {index} is another question in each process"
    answer = extract_answer(completion, form, item["answer"])
    if answer is None:
        return 0.0, False
    scores = [
        _scored(task, options, seed, one, item) for one in dict.fromkeys((answer, undressed(answer))) if one
    ]
    return max((one for one in scores if one is not None), default=None), True


def _scored(task: str, options: str, seed: int, answer: str, item: dict[str, Any]) -> float | None:
    """From 0 to 1, by the family's verifier and the rules of this file; None where the former fails."""
    if task in PARSED and not _EXPRESSION.fullmatch(answer):
        return 0.0
    if _NO_NUMBER.search(answer) and not _NO_NUMBER.search(item["answer"] or ""):
        return 0.0
    if task in EXACT:
        return float(answer.strip().lower() == item["answer"].lower())
    try:
        score = float(cached(task, options, seed).score_answer(answer, item))
        if score >= RIGHT and not _is_right(task, answer, item, score):
            return NEARLY if task in _SAME_TEXT or task == "time_intervals" else 0.0
    except (Exception, RecursionError, MemoryError):  # whatever an odd answer brings down
        return None
    return min(max(score, 0.0), 1.0)


def _is_right(task: str, answer: str, item: dict[str, Any], score: float) -> bool:
    """Whether an answer is right that the family's verifier calls right, or all but right."""
    if task == "coin_flip":
        return _near(answer, item["answer"])
    if task == "gsm_symbolic":  # whose verifier reads past a minus sign
        found = _SIGNED.search(answer.replace("\u2212", "-"))
        return found is not None and float(found[0]) == float(item["answer"])
    if task == "puzzle24":  # whose verifier takes any four numbers
        return sorted(map(int, re.findall(r"\d+", answer))) == sorted(item["metadata"]["numbers"])
    if task == "time_intervals":  # a few seconds of a day are next to nothing
        return score == 1.0
    if task in _SAME_TEXT:
        said, wanted = ("".join(text.split()).lower() for text in (answer, item["answer"]))
        return said == wanted
    return True


def _near(answer: str, wanted: str) -> bool:
    difference = Fraction(answer.replace(",", "")) - Fraction(wanted.replace(",", ""))
    return abs(float(difference)) <= COIN_FLIP_TOLERANCE


def make_pool(workers: int, deadline_s: float, memory_mb: int) -> JudgePool:
    """Processes that score."""
    preload = ("reasoning_gym",)
    return JudgePool(judge, FIRST, preload, workers=workers, deadline_s=deadline_s, memory_mb=memory_mb)


async def score(
    pool: JudgePool, problem: dict[str, Any], completion: str, form: AnswerFormat
) -> tuple[float | None, bool]:
    """`judge` in one of the pool's processes; (None, True) where it was late or brought its process down.

    Raises ValueError where the process makes another question than the one that was asked.
    """
    keys = ("task", "options", "seed", "index", "question")
    found = await pool.ask(*(problem[key] for key in keys), completion, form)
    if isinstance(found, str):
        raise ValueError(found)
    return (None, True) if found is None else (found[0], found[1])
