"""Which texts of a session become one."""

import numpy as np

from pipelinerl.dialogues import joined
from pipelinerl.rollouts import TrainingText, VersionSpan


def text(prompt: list[int], output: list[int], versions: list[VersionSpan] | None = None, **fields: object):
    base = {
        "text": "".join(map(chr, np.add(prompt + output, 64))),
        "n_predicted": len(output),
        "logprobs": [-token / 8 for token in output],
        "input_ids": prompt + output,
        "labels": [-100] * len(prompt) + output,
        "prompt_tokens": len(prompt),
        "output_tokens": len(output),
        "finished": True,
        "finish_reason": "stop",
        "weight_versions": versions or [(0, 0, len(output))],
    }
    return TrainingText.model_validate({**base, **fields})


def test_a_prompt_that_begins_with_the_last_prompt_and_answer_is_appended():
    parts = [text([1, 2], [3, 4]), text([1, 2, 3, 4, 5], [6], [(8, 0, 1)], metadata={"a": 1})]
    (one,) = joined(parts)
    assert one.input_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert one.labels.tolist() == [-100, -100, 3, 4, -100, 6]
    assert one.logprobs.tolist() == [-3 / 8, -4 / 8, -6 / 8]
    assert one.weight_versions == [(0, 0, 2), (8, 2, 3)] and one.metadata == {"a": 1}
    assert (one.prompt_text, one.output_text) == ("AB", "CDEF")
    assert (one.prompt_tokens, one.output_tokens) == (3, 3)


def test_neighbouring_spans_of_a_version_are_one():
    first, second = text([1], [2, 3], [(0, 0, 1), (4, 1, 2)]), text([1, 2, 3], [5])
    second.weight_versions = [(4, 0, 1)]
    assert joined([first, second])[0].weight_versions == [(0, 0, 1), (4, 1, 3)]


def test_each_token_has_the_experts_of_the_call_that_computed_it_first():
    def routes(tokens: int, expert: int) -> np.ndarray:
        return np.full((tokens, 2, 1), expert, np.uint8)

    first = text([1, 2], [3, 4], routed_experts=routes(3, 5))
    second = text([1, 2, 3, 4, 5], [6], routed_experts=routes(5, 6))
    third = text([1, 2, 3, 4, 5, 6, 7], [8])
    (one,) = joined([first, second])
    assert one.routed_experts is not None and one.routed_experts[:, 0, 0].tolist() == [5, 5, 5, 6, 6]
    (all_three,) = joined([first, second, third])  # the last call says nothing: its tokens have no record
    np.testing.assert_array_equal(all_three.routed_experts, one.routed_experts)
    assert joined([text([1], [2]), text([1, 2, 3], [4])])[0].routed_experts is None
    again = TrainingText.model_validate_json(one.model_dump_json())
    np.testing.assert_array_equal(again.routed_experts, one.routed_experts)
    assert again.routed_experts is not None and again.routed_experts.dtype == np.uint8


def test_texts_that_do_not_append_exactly_stay_apart():
    other_ids, older = text([1, 2, 4], [5]), text([1, 2, 3], [4])
    assert len(joined([text([1, 2], [3]), other_ids])) == 2
    newer = text([1, 2], [3], [(8, 0, 1)])
    assert len(joined([newer, older])) == 2, "spans of a sample may not decrease"
    same_prompt = joined([text([1], [2]), text([1], [2])])
    assert [one.input_ids.tolist() for one in same_prompt] == [[1, 2], [1, 2]]


def test_each_sampled_token_is_labelled_once_where_a_dialogue_branches():
    root, left, right = text([1], [2]), text([1, 2, 3], [4]), text([1, 2, 3], [5])
    grown = text([1, 2, 3, 5, 6], [7])
    first, second = joined([root, left, right, grown])
    assert first.labels.tolist() == [-100, 2, -100, 4]
    assert second.labels.tolist() == [-100, -100, -100, 5, -100, 7]


def test_a_turn_that_was_cut_makes_a_cut_dialogue():
    cut = text([1], [2], finished=False, finish_reason="length")
    (one,) = joined([cut, text([1, 2, 3], [4])])
    assert not one.finished and one.finish_reason == "length"
