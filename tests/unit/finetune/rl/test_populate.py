"""`populate_rl_data` as upstream's callers know it: columns, kinds of data sets, the reference values."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl import populate_rl_data
from pipelinerl.rollouts import MASKED_TOKEN_ID

FIXTURE = Path(__file__).parents[3] / "fixtures" / "advantages_pr146.json"
CASES = json.loads(FIXTURE.read_text())["cases"]
END = 7
COLUMNS = ("advantages", "group_tokens", "overflow", "num_labels", "loss_weight_scale")


def row(
    rollout: int, step: int, reward: float, tokens: int = 4, group: str = "g", **more: Any
) -> dict[str, Any]:
    """As upstream's preprocess makes it, with the placeholders that it puts in."""
    return {
        "group_id": group,
        "rollout_index": rollout,
        "step_index": step,
        "input_ids": [END] + [1] * (tokens - 1),  # a template that holds the end of a sequence
        "labels": [MASKED_TOKEN_ID] + [1] * (tokens - 1),
        "rewards": [reward] * tokens,
        "advantages": [0.0] * tokens,
        "overflow": [0] * tokens,
        "group_tokens": [0] * tokens,
        "metadata": {},
        **more,
    }


class TableOfColumns:
    """The methods of a `datasets.Dataset` that are used; nothing is changed in place."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns

    @property
    def column_names(self) -> list[str]:
        return list(self._columns)

    def to_dict(self) -> dict[str, list[Any]]:
        return dict(self._columns)

    def remove_columns(self, names: list[str]) -> "TableOfColumns":
        return TableOfColumns({k: v for k, v in self._columns.items() if k not in names})

    def add_column(self, name: str, values: list[Any]) -> "TableOfColumns":
        assert name not in self._columns
        return TableOfColumns(self._columns | {name: values})


def columns_of(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [one[name] for one in rows] for name in rows[0]}


@pytest.mark.parametrize("number", range(len(CASES)))
def test_reference_cases(number: int) -> None:
    case = CASES[number]
    texts = [
        row(
            t["rollout_index"],
            t["step_index"],
            t["reward"],
            t["n_tokens"],
            t["group_id"],
            metadata=t["metadata"],
        )
        for t in case["texts"]
    ]
    for options, expected in case["expected"].items():
        pad, std, mode = (part.split("=")[-1] for part in options.split(","))
        steps = case["step_reward_advantages"]
        config = RLConfig(
            step_reward_advantages=steps,
            pad_step_rewards_for_advantage=steps and pad == "1",
            divide_advantage_by_std=std == "1",
            batch_size_normalization=mode,
        )
        found = populate_rl_data([dict(text) for text in texts], END, config)
        for name, values in expected.items():
            per_text = [one[name] for one in found]
            assert [len(tokens) for tokens in per_text] == [t["n_tokens"] for t in case["texts"]]
            assert all(set(tokens) == {tokens[0]} for tokens in per_text)
            first = [tokens[0] for tokens in per_text]
            np.testing.assert_allclose(first, values, rtol=1e-12, atol=1e-12, err_msg=f"{options} {name}")


def test_the_kind_of_the_data_set_and_its_other_columns_stay() -> None:
    rows = [row(0, 0, 1.0), row(1, 0, 0.0, 3)]
    columns = columns_of(rows)
    from_columns = populate_rl_data(columns, END, RLConfig())
    from_table = populate_rl_data(TableOfColumns(columns), END, RLConfig())
    assert columns["advantages"][0] == [0.0] * 4, "a dict of columns is not changed"
    assert populate_rl_data(rows, END, RLConfig()) is rows
    assert isinstance(from_columns, dict) and isinstance(from_table, TableOfColumns)
    assert from_columns == from_table.to_dict() == columns_of(rows)
    assert from_columns["advantages"] == [[1.0] * 4, [-1.0] * 3]
    assert from_columns["num_labels"] == [[3] * 4, [2] * 3] and from_columns["rewards"] == columns["rewards"]


@pytest.mark.parametrize(
    ("steps", "expected", "tokens"),
    [(True, [2.0, 2.0, -2.0, -2.0, 0.0, 0.0], 10.0), (False, [2.0, 2.0, -2.0, -2.0, -2.0, -2.0], 3.5)],
)
def test_samples_of_a_step_are_compared_as_upstream_does_without_rollout_level_loo(
    steps: bool, expected: list[float], tokens: float
) -> None:
    """Steps two and three of the longer rollout have no other of their step."""
    rows = [row(0, step, 1.0, 3) for step in range(2)] + [row(1, step, -1.0, 4) for step in range(4)]
    rows[1] = row(0, 1, 1.0, 1)  # 4 and 16 tokens, of which the first samples have 3 and 4
    found = populate_rl_data(rows, END, RLConfig(step_reward_advantages=steps))
    assert [one["advantages"][0] for one in found] == expected
    assert {one["group_tokens"][0] for one in found} == {tokens}


def test_overflow_is_read_from_the_reason_and_then_from_the_labelled_tokens() -> None:
    rows = [
        row(0, 0, 0.0, finish_reason="length", finished=True),
        row(1, 0, 0.0, finish_reason=" STOP "),
        row(2, 0, 0.0, finished=True),
        row(3, 0, 0.0, labels=[MASKED_TOKEN_ID, 1, 1, END], input_ids=[1, 1, 1, END]),
        row(4, 0, 0.0),  # the id stands in its prompt only
    ]
    found = populate_rl_data(rows, END, RLConfig())
    assert [one["overflow"] for one in found] == [[value] * 4 for value in (1.0, 0.0, 0.0, 0.0, 1.0)]


def test_texts_that_are_not_trained_keep_their_place_with_scale_0() -> None:
    situation = {"situation": "a"}
    rows = [row(0, 0, 1.0, **situation), row(1, 0, 0.0, **situation, loss_weight=0.0)]
    rows += [row(1, 1, -9.0, **situation, masked=True), row(2, 0, 0.5, **situation)]
    config = RLConfig(step_reward_advantages=True, batch_size_normalization="rollouts")
    found = populate_rl_data(rows, END, config)
    assert [one["advantages"][0] for one in found] == [0.75, -0.75, 0.0, 0.0]
    assert [one["loss_weight_scale"][0] for one in found] == [1.0, 0.0, 0.0, 1.0]


def test_each_token_has_its_own_reward_against_the_baseline_of_the_text() -> None:
    rows = [row(0, 0, 0.0, rewards=[1.0, 0.5, 0.5, 0.0]), row(1, 0, 0.25)]
    assert populate_rl_data(rows, END, RLConfig())[0]["advantages"] == [0.75, 0.25, 0.25, -0.25]
    with pytest.raises(ValueError, match="sample g/0/0: rewards differ between tokens"):
        populate_rl_data(rows, END, RLConfig(divide_advantage_by_std=True))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(0, 0, 0.0) | {"step_index": None}], "sample 0 has no step_index"),
        ([row(0, 0, 0.0, rewards=[1.0])], "sample g/0/0: 4 input_ids, 4 labels and 1 rewards"),
        ([row(0, 0, float("nan"))], "sample g/0/0: a reward is not finite"),
        ([row(0, 0, 0.0), row(0, 0, 0.0)], "sample g/0/0: 2 samples have this group, rollout and step"),
        ([row(0, 0, 0.0), row(0, 1, 1.0)], "step_reward_advantages=true"),
        ([row(0, 0, 0.0, metadata={"step_advantage_local_index": 0})], "sample g/0/0: metadata needs"),
    ],
)
def test_what_is_wrong_with_a_text_is_named(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        populate_rl_data(rows, END, RLConfig())


def test_no_data_set_and_an_empty_one() -> None:
    with pytest.raises(TypeError, match=r"a str is no data set; give a list of dicts, a dict of columns"):
        populate_rl_data("rows", END, RLConfig())
    assert populate_rl_data([], END, RLConfig()) == []


def test_rl_step_says_what_to_call_instead() -> None:
    with pytest.raises(ImportError, match=r"no rl_step: .*losses\.total_loss.*step\.Learner\.accumulate"):
        from pipelinerl.finetune.rl import rl_step  # noqa: F401
