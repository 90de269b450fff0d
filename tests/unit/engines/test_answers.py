"""An answer is taken only if it is consistent in itself."""

import json
from typing import Any

import numpy as np
import pytest

from pipelinerl.engines.answers import UNVERSIONED, InvalidAnswer, read_generation, read_prompt_logprobs

PROMPT = np.array([1, 2, 3], dtype=np.int32)


def entries(*logprobs: float | None, ids: tuple[int, ...] = (5, 6, 7)) -> dict[str, Any]:
    return {"content": [{"token_id": i, "logprob": p} for i, p in zip(ids, logprobs, strict=False)]}


def spans(*triples: tuple[str, int, int]) -> list[dict[str, Any]]:
    return [{"version": v, "start": a, "end": b} for v, a, b in triples]


def choice(**changes: Any) -> dict[str, Any]:
    good = {
        "index": 0,
        "token_ids": [5, 6, 7],
        "finish_reason": "stop",
        "stop_reason": None,
        "logprobs": entries(0.0, -0.5, -1.0),
        "weight_versions": spans(("3", 0, 1), ("4", 1, 3)),
    }
    return good | changes


def read(*choices: dict[str, Any], announced: int | None = None) -> Any:
    body = json.dumps({"choices": list(choices), "usage": {"prompt_tokens": 3}}).encode()
    return read_generation(body, PROMPT, announced)


def test_a_consistent_answer_becomes_arrays_and_spans() -> None:
    one = read(choice())
    assert one.token_ids.dtype == np.int32 and one.token_ids.tolist() == [5, 6, 7]
    assert one.logprobs.dtype == np.float32 and one.logprobs.tolist() == [0.0, -0.5, -1.0]
    assert one.versions == [(3, 0, 1), (4, 1, 3)] and one.exact_versions


def test_without_spans_the_version_announced_is_a_lower_bound() -> None:
    content = [{"token": f"token_id:{5 + i}", "logprob": -1.0} for i in range(3)]
    one = read(choice(weight_versions=None, logprobs={"content": content}), announced=9)
    assert one.versions == [(9, 0, 3)] and not one.exact_versions


def test_tokens_before_the_first_update_are_marked() -> None:
    one = read(choice(weight_versions=spans(("default", 0, 3))))
    assert one.versions == [(UNVERSIONED, 0, 3)]


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "too few log-probabilities": ({"logprobs": entries(-1.0, -1.0)}, "2 log-probabilities for 3 tokens"),
    "no log-probabilities": ({"logprobs": None}, "0 log-probabilities for 3 tokens"),
    "other ids": ({"logprobs": entries(-1.0, -1.0, -1.0, ids=(5, 9, 7))}, "belongs to token 9, not 6"),
    "floor": ({"logprobs": entries(-1.0, -9999.0, -1.0)}, r"logprobs\[1\] is -9999"),
    "not a number": ({"logprobs": entries(-1.0, None, -1.0)}, "cannot be decoded"),
    "gap": ({"weight_versions": spans(("1", 0, 1), ("2", 2, 3))}, "gaps or decrease"),
    "decreasing versions": ({"weight_versions": spans(("2", 0, 1), ("1", 1, 3))}, "gaps or decrease"),
    "short cover": ({"weight_versions": spans(("2", 0, 2))}, "cover 2 of 3"),
    "not a version": ({"weight_versions": spans(("v2", 0, 3))}, "not a decimal integer"),
    "unfinished": ({"finish_reason": None}, "finish_reason None"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_answer_is_refused(lie: str) -> None:
    changes, message = LIES[lie]
    with pytest.raises(InvalidAnswer, match=message):
        read(choice(**changes))


def test_wrong_number_of_choices_is_refused() -> None:
    with pytest.raises(InvalidAnswer, match="2 choices instead of 1"):
        read(choice(), choice(index=1))
    with pytest.raises(InvalidAnswer, match="cannot be decoded"):
        read_generation(b"<html>", PROMPT, None)


def test_prompt_logprobs_must_score_the_prompt_that_was_sent() -> None:
    scores = [None, {"2": {"logprob": -1.0, "rank": 1}}, {"3": {"logprob": -2.0, "rank": 1}}]
    body = json.dumps({"choices": [], "prompt_logprobs": scores}).encode()
    assert read_prompt_logprobs(body, PROMPT).tolist() == [-1.0, -2.0]
    with pytest.raises(InvalidAnswer, match="does not score token 9"):
        read_prompt_logprobs(body, np.array([1, 2, 9]))
    with pytest.raises(InvalidAnswer, match="3 entries for 4"):
        read_prompt_logprobs(body, np.array([1, 2, 3, 4]))
