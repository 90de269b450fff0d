"""Typed situation fields and metadata keys: either side may write, both must agree."""

import math

import pytest

from pipelinerl.rollouts import TrainingText
from pipelinerl.situations import emit_situations


def text(**fields) -> TrainingText:
    return TrainingText(text="x", n_predicted=1, **fields)


def places(texts):
    index, length = "step_advantage_local_index", "step_advantage_segment_length"
    return [(t.metadata[index], t.metadata[length]) for t in texts]


def test_index_and_length_are_counted_within_a_situation():
    texts = [text(situation="S"), text(situation="C"), text(situation="S"), text()]
    emit_situations(texts, "g/0")
    assert places(texts[:3]) == [(0, 2), (0, 1), (1, 2)]
    assert [t.metadata.get("step_advantage_group") for t in texts] == ["S", "C", "S", None]


def test_facts_given_as_metadata_become_typed_fields():
    made = text(
        metadata={"step_advantage_group": "S", "step_advantage_padding_value": 0.5, "padding_reward": 1.0}
    )
    emit_situations([made], "g/0")
    assert (made.situation, made.padding_value, made.padding_reward) == ("S", 0.5, 1.0)


def test_typed_fields_become_metadata():
    made = text(situation="S", padding_value=0.25, padding_reward=math.nan)
    emit_situations([made], "g/0")
    assert made.metadata["step_advantage_padding_value"] == 0.25
    assert "padding_reward" not in made.metadata and made.padding_reward is None


def test_pooled_texts_are_index_0_of_1():
    texts = [text(situation="S", position="pool") for _ in range(3)]
    emit_situations(texts, "g/0")
    assert places(texts) == [(0, 1)] * 3


def test_given_places_are_used_as_they_are():
    given = {"step_advantage_local_index": 2, "step_advantage_segment_length": 5}
    made = text(situation="S", metadata=given)
    emit_situations([made], "g/0")
    assert places([made]) == [(2, 5)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"situation": "S", "metadata": {"step_advantage_group": "T"}}, "'S' contradicts.*'T'"),
        ({"situation": "", "metadata": {}}, "empty string"),
        ({"padding_value": 0.5, "metadata": {"step_advantage_padding_value": 0.6}}, "padding_value=0.5"),
        ({"situation": "S", "metadata": {"step_advantage_local_index": 0}}, "metadata needs"),
        (
            {
                "situation": "S",
                "metadata": {"step_advantage_local_index": 3, "step_advantage_segment_length": 3},
            },
            "=3 is not in",
        ),
        ({"position": "pool"}, "'pool' without a situation"),
    ],
)
def test_contradictions_name_the_text(fields, message):
    with pytest.raises(ValueError, match=f"g/7/1: .*{message}"):
        emit_situations([text(), text(**fields)], "g/7")


def test_masked_texts_do_not_move_the_places_of_others():
    texts = [text(situation="a", masked=step == 0) for step in range(3)]
    emit_situations(texts, "g/0")
    assert places(texts[1:]) == [(0, 2), (1, 2)]


def test_one_situation_is_either_pooled_or_aligned():
    texts = [text(situation="S"), text(situation="S", position="pool")]
    with pytest.raises(ValueError, match="g/7: situation 'S' has both"):
        emit_situations(texts, "g/7")
