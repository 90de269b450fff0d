"""Twenty groups of which nothing can be learnt are one remark, with the reason and what to do."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipelinerl.config import Config
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.preprocess.signal import SignalWatch
from pipelinerl.rollouts import MASKED_TOKEN_ID
from tests.support.builders import group, ready
from tests.unit.preprocess.conftest import Bench

Change = Callable[[dict[str, Any]], object]
FILTER = {"finetune": {"rl": {"filter_zero_advantage_groups": True}}}


def remarks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if getattr(record, "remark", False)]


def feed(bench: Bench, numbers: range, change: Change) -> None:
    for number in numbers:
        texts = group(number)
        for text in texts:
            change(text)
        bench.preprocess.take_groups([texts])


def lengthen(text: dict[str, Any], by: int) -> None:
    """Tokens of a prompt before it."""
    text["input_ids"] = np.concatenate([np.full(by, 5, np.int32), text["input_ids"]])
    text["labels"] = np.concatenate([np.full(by, MASKED_TOKEN_ID, np.int32), text["labels"]])


@pytest.mark.parametrize(
    ("bench", "change", "words"),
    [
        ({}, lambda text: text.update(reward=0.0), ("equal rewards 20", "(all 0)", "every advantage is 0")),
        (FILTER, lambda text: text.update(reward=1.0), ("equal rewards 20", "(all 1)")),
        ({}, lambda text: lengthen(text, 24), ("oversize 20", "finetune.seq_length=24")),
        ({}, lambda sample: sample.update(masked=True), ("masked 20", "masks every sample")),
        ({}, lambda text: text.update(loss_weight=0.0), ("baseline_only 20", "loss_weight 0")),
        (
            {"finetune": {"rl": {"overlong_filtering": True}}},
            lambda text: text.update(finish_reason="length", finished=False),
            ("cut samples 20", "overlong_filtering=false"),
        ),
        (
            {"finetune": {"rl": {"use_advantages": False}}},
            lambda text: text.update(reward=0.0),
            ("no positive factor 20", "rewards"),
        ),
        (
            {"finetune": {"rl": {"use_advantages": False, "relu_log_p_weights": True}}},
            lambda text: text.update(reward=-1.0),
            ("factors below 0 20", "relu_log_p_weights=true"),
        ),
        (
            {},
            lambda text: text.update(reward=1e-30 * text["reward"]),
            ("rewards that hardly differ 20", "no weight of a sample is above 1e-06"),
        ),
    ],
    ids=["equal", "filtered", "oversize", "masked", "baseline", "cut", "zero_rewards", "below", "tiny"],
    indirect=["bench"],
)
def test_twenty_groups_without_a_signal_are_one_remark(
    bench: Bench, change: Change, words: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        feed(bench, range(19), change)
        assert remarks(caplog) == []
        feed(bench, range(19, 60), change)
    (line,) = remarks(caplog)
    assert line.startswith("nothing to learn from 20 groups in a row (") and "\n" not in line
    for word in words:
        assert word in line


def test_groups_that_differ_from_each_other_have_rewards_of_their_own(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        feed(bench, range(20), lambda text: text.update(reward=float(text["group_id"][1:])))
    assert "(each group its own, 0 to 19)" in remarks(caplog)[0]


def test_one_group_with_a_signal_among_nineteen_is_enough(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for start in range(0, 60, 20):
            feed(bench, range(start, start + 19), lambda text: text.update(reward=1.0))
            feed(bench, range(start + 19, start + 20), lambda text: None)
    assert remarks(caplog) == []


@pytest.mark.parametrize(
    "finetune",
    [
        {"rl": {"policy_loss": "sft"}},
        {"model_class": "causal-language-modeling-with-value-head", "rl": {"value_loss_coef": 0.5}},
    ],
    ids=["sft", "value_head"],
)
def test_what_learns_without_advantages_is_not_blamed_for_having_none(finetune: dict[str, Any]) -> None:
    watch = SignalWatch(Config.model_validate({"finetune": finetune}))
    for number in range(40):
        watch.add([no_advantage(number)], [])
    assert watch.remark() is None


def no_advantage(number: int) -> Sample:
    return ready(number, advantage=0.0)


def test_what_relu_leaves_out_is_not_called_equal() -> None:
    rl = {"relu_log_p_weights": True}
    watch = SignalWatch(Config.model_validate({"finetune": {"rl": rl}}))
    for number in range(20):  # the better samples of these groups were too long, say
        watch.add([ready(number, advantage=-0.5)], ["oversize"])
    line = watch.remark()
    assert line is not None and "factors below 0 20" in line and "equal" not in line
