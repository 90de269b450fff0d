"""Which part of a completion is scored, in each format."""

import pytest

from domains.reasoning_gym.answers import FORMATS, AnswerFormat, extract_answer

CASES: list[tuple[AnswerFormat, str, str | None]] = [
    ("tag", "so <answer> 12 </answer>", "12"),
    ("tag", "<answer>1</answer> no, <answer>2\n3</answer>", "2\n3"),
    ("tag", "12", None),
    ("tag", "<answer>12", None),
    ("tag", "<answer> </answer>", None),
    ("tag", "<answer>1 <answer>2</answer> 3</answer>", "2"),
    ("tag", "<answer>1</answer> or <answer>2", "1"),
    ("last_number", "7 + 5 = 12.", "12"),
    ("last_number", "3 - 5 = -2", "-2"),
    ("last_number", "3 - 5 = \u22122.", "-2"),
    ("last_number", "it is 7-5", "5"),
    ("last_number", "(3)-5", "5"),
    ("last_number", "about 1,234,567.50!", "1234567.50"),
    ("last_number", "between 1, 2,3", "3"),
    ("last_number", "none", None),
    ("last_number", "it is .5", "0.5"),
    ("last_number", "x = -.25", "-0.25"),
    ("last_number", "in v2.5 or see.7", "7"),
    ("last_word", "The word backward is 'nus'.", "nus"),
    ("last_word", "12!", None),
    ("text", "  a b\nc ", "a b\nc"),
    ("text", "  ", None),
]


@pytest.mark.parametrize(("form", "completion", "answer"), CASES)
def test_each_format_has_its_answer(form: AnswerFormat, completion: str, answer: str | None) -> None:
    assert extract_answer(completion, form) == answer


@pytest.mark.parametrize(
    ("completion", "right", "answer"),
    [
        ("7 + 5 = 12. <answer>13</answer>", "12", "13"),
        ("7 + 5 = 12.", "12", "12"),
        ("7 - 5 = -2.", "-3.5", "-2"),
        ("It is tac.", "tac", "tac"),
        (" [1, 2] ", "[1, 2]", "[1, 2]"),
        ("a 3", None, "a 3"),
        ("twelve", "12", None),
    ],
)
def test_auto_takes_the_tag_or_what_looks_like_the_right_answer(
    completion: str, right: str | None, answer: str | None
) -> None:
    assert extract_answer(completion, "auto", right) == answer


def test_no_format_fails_at_an_odd_completion() -> None:
    for form in FORMATS:
        # Half a million openings took hours where each was read on to the end.
        for odd in ("", "\x00", "<answer>" * 500_000, "-" * 1000 + "1" * 1000, "\U0001f600" * 9):
            extract_answer(odd, form, "1")
