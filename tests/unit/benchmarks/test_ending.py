"""What is made of a probe's questions around the answers of one step."""

from __future__ import annotations

from benchmarks._ending import Asked, ending_of


def test_a_process_began_on_the_answers_when_it_left_a_question_waiting() -> None:
    asked = [Asked(1.0, 1.002, 4.0), Asked(1.1, 1.596, 4.5), Asked(1.65, 1.7, 5.0)]
    found = ending_of(asked, [1.60, 1.61, 1.62], cpu_s=5.1)
    assert (found.answers, round(found.seconds, 6), round(found.spread_s, 6)) == (3, 0.52, 0.02)
    assert round(found.cpu_s, 6) == 0.6


def test_a_question_asked_after_the_first_answer_waited_for_no_answer() -> None:
    found = ending_of([Asked(1.0, 1.001, 4.0), Asked(1.7, 1.8, 5.0)], [1.60, 1.62], cpu_s=4.9)
    assert round(found.seconds, 6) == 0.02 and found.cpu_s == 0.0
