"""Samples of groups that share prompts, and what the trainer's rows are made of."""

import numpy as np
import pytest

from benchmarks._texts import random_groups
from benchmarks.gpu.shared import Cell, figures_of
from pipelinerl.rollouts import MASKED_TOKEN_ID


def test_a_group_shares_its_prompt_and_nothing_else_is_trained_on() -> None:
    texts = random_groups(groups=2, texts=3, prompt=5, sampled=4, vocab=1000)
    assert [text.group_id for text in texts] == ["g0"] * 3 + ["g1"] * 3
    first, second, *_, other = texts
    assert (first.input_ids[:5] == second.input_ids[:5]).all()
    assert (first.input_ids[5:] != second.input_ids[5:]).any()
    assert (first.input_ids[:5] != other.input_ids[:5]).any()
    assert (first.labels[:5] == MASKED_TOKEN_ID).all() and (first.labels[5:] == first.input_ids[5:]).all()
    assert first.old_logprobs.dtype == np.float32 and len(first.old_logprobs) == 4
    assert first.group_tokens == 3 * 9


def cell(way: str, unique: int, *seconds: float) -> Cell:
    return Cell("groups", "none", way, 10, 1, unique, 400, passes_s=list(seconds), steps_s=list(seconds))


def test_rates_are_of_median_steps_and_ways_are_compared_in_one_mode() -> None:
    rows = [cell("shared", 200, 0.1, 0.1, 9.0).row_of(99), cell("unshared", 400, 0.2).row_of(99)]
    assert rows[0]["samples_per_s"] == pytest.approx(100.0)
    assert rows[0]["mfu_raw_percent"] == pytest.approx(2 * rows[0]["mfu_unique_percent"])
    figures = {one.name: one for one in figures_of(rows, goals=True)}
    assert figures["groups, none: shared / unshared"].value == pytest.approx(2.0)
    assert figures["groups: fastest, ratio"].value == pytest.approx(2.0)
    assert figures["groups: fastest shared"].met
    assert all(one.goal is None for one in figures_of(rows, goals=False))
