"""What the page of rollouts says of pairs and verdicts."""

from typing import Any

from domains.raro.notes import verdict_notes


def policy(answer: str) -> dict[str, Any]:
    return {"role": "policy", "situation": "raro:policy", "answer": answer, "metadata": {}}


def critic(said: str, label: str | None, position: int = 1, source: str = "fresh") -> dict[str, Any]:
    metadata = {"source": source, "expert_position": position, "label": label, "replay_age": 64}
    return {"role": "critic", "situation": "raro:critic:1", "answer": said, "metadata": metadata}


def test_each_verdict_says_whose_answer_it_took_and_which_stood_first() -> None:
    notes = verdict_notes(
        "g/0",
        [
            policy("1+1=2;<answer>(1+1)*12</answer>"),
            critic("so [Answer 1]", "expert"),
            critic("so [Answer 1]", "policy", position=2),
            critic("so [Answer 2]", "policy"),
            critic("no idea", None),
            critic("so [Tie]", "tie", source="replay"),
        ],
    )
    judged, *verdicts = notes
    assert (judged.turn, judged.badge) == (0, "")
    assert [judged.text[start:stop] for start, stop in judged.spans] == ["(1+1)*12"]
    assert "of 4 verdicts 1 picked the expert's answer, 2 took the policy's answer" in judged.text
    assert judged.text.endswith("1 could not be read")
    assert [note.level for note in verdicts] == ["good", "bad", "bad", "warn", "warn"]
    assert "answer 1 is the expert's, 2 the policy's; fresh pair" in verdicts[0].text
    assert "answer 1 is the policy's, 2 the expert's" in verdicts[1].text
    assert "pair from 64 samples ago" in verdicts[4].text


def test_an_answer_that_fooled_most_has_a_badge_and_one_that_nobody_judged_says_so() -> None:
    fooled = verdict_notes("g/0", [policy("<answer>1</answer>"), critic("[Answer 2]", "policy")])
    assert fooled[0].badge == "critic fooled"
    (alone,) = verdict_notes("g/1", [policy("no tags")])
    assert (alone.badge, alone.text) == ("not judged", "no answer that can be read")


def test_texts_of_another_domain_of_the_run_are_left_alone() -> None:
    assert verdict_notes("g/0", [policy("x") | {"situation": "privacy_hopqa:hop:1"}]) == []
