"""What the page of rollouts says of the judge."""

from typing import Any

import pytest

from domains.math.notes import judge_notes


@pytest.mark.parametrize(
    ("answer", "metadata", "text", "level", "badge"),
    [
        ("so \\boxed{42}", {"verdict": "correct", "expected": "42"}, "42: correct, expected 42", "good", ""),
        ("so \\boxed{41}", {"verdict": "wrong", "expected": "42"}, "41: wrong, expected 42", "bad", ""),
        (
            "so 42",
            {"verdict": "no_answer", "expected": "42"},
            "no boxed answer: no_answer, expected 42",
            "warn",
            "no answer",
        ),
    ],
)
def test_the_judge_s_reading_its_verdict_and_what_was_expected(
    answer: str, metadata: dict[str, Any], text: str, level: str, badge: str
) -> None:
    *head, note = judge_notes("g/0", [{"answer": answer, "metadata": metadata}])
    assert [(one.kind, one.turn) for one in head] == [("answer", None), ("gold", None)]
    assert note.text.startswith(f"{head[0].text}: ") and note.text.endswith(f"expected {head[1].text}")
    assert (note.text, note.level, note.badge, note.turn) == (text, level, badge, 0)


def test_texts_without_a_verdict_are_of_another_domain_or_run() -> None:
    assert judge_notes("g/0", [{"answer": "so \\boxed{42}", "metadata": {}}]) == []
