"""Bad groups and texts are dropped with a reason, good ones pass untouched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipelinerl.preprocess.reading import SampleLimits, read_group
from tests.support.builders import group, record
from tests.support.policy import VOCAB

LIMITS = SampleLimits(vocab_size=VOCAB, seq_length=20, attempts=4, needs_versions=True)


def change(**fields: Any) -> dict[str, Any]:
    return record("g0", 0, 0, 1.0, 5) | fields


def test_good_groups_pass_with_fewer_rollouts_or_several_steps() -> None:
    for texts in (group(0), group(0)[:2], group(0, steps=3)):
        group_read = read_group(texts, LIMITS)
        assert not group_read.dropped
        for sample, text in zip(group_read.samples, texts, strict=True):
            assert sample.input_ids is text["input_ids"] and sample.old_logprobs is text["logprobs"]


GOOD = record("g0", 0, 0, 1.0, 5)
N = len(GOOD["logprobs"])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"input_ids": np.full_like(GOOD["input_ids"], VOCAB)}, "label_mismatch"),
        ({"logprobs": GOOD["logprobs"][:-1]}, "label_mismatch"),
        ({"labels": GOOD["labels"][:-1]}, "label_mismatch"),
        ({"labels": np.full_like(GOOD["labels"], -100), "logprobs": np.zeros(0, np.float32)}, "no_labels"),
        ({"reward": float("nan")}, "not_finite"),
        ({"logprobs": np.full(N, -np.inf, np.float32)}, "not_finite"),
        ({"weight_versions": [[0, 0, N - 1]]}, "bad_versions"),
        ({"weight_versions": [[3, 0, 1], [2, 1, N]]}, "bad_versions"),
        ({"weight_versions": [], "metadata": {"rollout_index": 0, "step_index": 0}}, "no_version"),
    ],
)
def test_bad_texts_have_a_reason(fields: dict[str, Any], reason: str) -> None:
    other = record("g0", 1, 0, 0.0, 6)
    found = read_group([change(**fields), other], LIMITS)
    assert found.dropped == [("g0/0", reason)] and [sample.name for sample in found.samples] == ["g0/1/0"]


def test_ids_outside_the_vocabulary_and_long_texts() -> None:
    foreign = change(input_ids=GOOD["input_ids"].copy(), labels=GOOD["labels"].copy())
    foreign["input_ids"][0] = VOCAB
    assert read_group([foreign], LIMITS).dropped[0][1] == "foreign_id"
    ids = np.ones(21, np.int32)
    labels = np.where(np.arange(21) < 20, -100, 1)
    long = change(input_ids=ids, labels=labels, logprobs=np.zeros(1, np.float32), weight_versions=[[0, 0, 1]])
    assert read_group([long], LIMITS).dropped[0][1] == "oversize"


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"rollout_index": 0, "step_index": 0}, "duplicate_index"),
        ({"rollout_index": 4, "step_index": 0}, "foreign_index"),
        ({"rollout_index": None, "step_index": 0}, "foreign_index"),
        ({"rollout_index": 1}, "foreign_index"),
    ],
)
def test_bad_bookkeeping_drops_the_group(metadata: dict[str, Any], reason: str) -> None:
    texts = [change(), change(metadata=metadata)]
    found = read_group(texts, LIMITS)
    assert not found.samples and [r for _, r in found.dropped] == [reason, reason]


def test_a_text_of_another_group_drops_the_group() -> None:
    texts = [change(), record("g1", 1, 0, 0.0, 6)]
    assert [r for _, r in read_group(texts, LIMITS).dropped] == ["foreign_group"] * 2
