"""What rollouts read from completions: the policy's answer and the critic's verdict.

Pure functions that take any text.
"""

from typing import Literal

from pipelinerl.base.thoughts import answer_part

Verdict = Literal["[Answer 1]", "[Answer 2]", "[Tie]"]

ANSWER_1: Verdict = "[Answer 1]"
ANSWER_2: Verdict = "[Answer 2]"
TIE: Verdict = "[Tie]"
VERDICTS: tuple[Verdict, ...] = (ANSWER_1, ANSWER_2, TIE)
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"


def holds_verdict(text: str) -> bool:
    """Whether a verdict tag stands in the text; an answer that has one could steer the critic."""
    return any(tag in text for tag in VERDICTS)


def extract_answer(completion: str) -> str | None:
    """The text after the last `<answer>` of a completion that ends with `</answer>`; thoughts are not read.

    None without both tags, for an empty answer, and for one that holds a tag of its own.
    """
    text = answer_part(completion).rstrip()
    if not text.endswith(ANSWER_CLOSE):
        return None
    _, opened, answer = text[: -len(ANSWER_CLOSE)].rpartition(ANSWER_OPEN)
    if not opened or not answer.strip() or ANSWER_CLOSE in answer or holds_verdict(answer):
        return None
    return answer


def parse_verdict(completion: str) -> Verdict | None:
    """The last verdict tag outside of thoughts; None without one, or if its line holds two different ones."""
    text = answer_part(completion)
    found: list[tuple[int, Verdict]] = [(at, tag) for tag in VERDICTS if (at := text.rfind(tag)) >= 0]
    if not found:
        return None
    at, verdict = max(found)
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line = text[start : len(text) if end < 0 else end]
    return verdict if sum(tag in line for tag in VERDICTS) == 1 else None
