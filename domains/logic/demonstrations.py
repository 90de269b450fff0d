"""Answers to puzzles for a small model to imitate, right or careless as those of `reasoning_gym`."""

from collections.abc import Mapping
from typing import Any

from domains.reasoning_gym.demonstrations import Mistake

PIECES = (
    "Your task is to sort words in ascending or descending order using ASCII/Unicode ordering.\n\n"
    "Your output should be a comma-separated list of words, e.g. word_1, word_2, word_3\n\n"
    "Now, sort these words in ",
    " order (using ASCII/Unicode ordering) and return them as a comma-separated list:",
    "A very special island is inhabited only by ",
    " always tell the truth, and ",
    " always lie. You meet 2 inhabitants: ",
    " if and only if ",
    " So who is a",
    "? (Format your answer like: ",
)
"""Parts of the questions that a small model reads as one token.

Written down, not computed as in `reasoning_gym`: they stand between what varies, and one of them in some
questions only. The bundled model's tokenizer has them, so a change of one is a change of that model.
"""


def unsorted(found: Mapping[str, Any]) -> str:
    """The words as they stand in the question."""
    return ", ".join(found["metadata"]["transformed_words"])


def believed(found: Mapping[str, Any]) -> str:
    """Everybody tells the truth."""
    names, terms = found["metadata"]["names"], found["metadata"]["knight_knave_terms"]
    said = [f"{name} is {terms['a_knight']}" for name in names]
    return f"{', '.join(said[:-1])}, and {said[-1]}."


MISTAKES: dict[str, Mistake] = {
    "word_sorting": unsorted,
    "web_of_lies": believed,
}
"""How a task is answered without care."""
