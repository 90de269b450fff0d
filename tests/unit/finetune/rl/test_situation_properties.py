"""Invariants of situational advantages, filters and loss weights over random groups."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl import loss_scale as loss_scale_module
from pipelinerl.finetune.rl.advantages import Advantages
from pipelinerl.finetune.rl.advantages import situation as situation_module
from pipelinerl.finetune.rl.advantages.base import zero_advantage_groups
from pipelinerl.finetune.rl.batch import assemble_step
from pipelinerl.finetune.rl.loss_scale import apply_scales, loss_scales
from pipelinerl.finetune.rl.table import SampleTable
from pipelinerl.preprocess.chunk import process_chunk
from tests.support.builders import estimate, record, samples, table_of, text

Texts = list[dict[str, Any]]
KINDS = list(product((None, "plan", "read", "judge"), (1.0, 0.5), (None, -1.0, 0.0, 0.5), range(2, 10)))
"""Situation, loss weight, padding value and tokens of a text."""


@st.composite
def groups(draw: st.DrawFn, roles: bool = False) -> Texts:
    """1-3 groups of 1-5 rollouts of 1-6 texts, with and without situations and padding values."""
    texts: Texts = []
    for group in range(draw(st.integers(1, 3))):
        for rollout in range(draw(st.integers(1, 5))):
            for step in range(draw(st.integers(1, 6))):
                label, weight, padding, tokens = draw(st.sampled_from(KINDS))  # together is quicker
                fields: dict[str, Any] = {"situation": label, "loss_weight": weight}
                if label == "judge":
                    fields["position"] = "pool"
                if padding is not None:
                    fields["padding_reward" if label is None else "padding_value"] = padding
                if roles:
                    fields["role"] = "critic" if label == "judge" else "policy"
                reward = draw(st.floats(-2, 2, allow_nan=False))
                texts.append(text(rollout, step, reward, f"g{group}", tokens, **fields))
    return texts


def computed(texts: Texts, pad: bool, std: bool) -> tuple[SampleTable, Advantages]:
    table = table_of(texts)
    return table, estimate(table, True, pad, std)


@settings(max_examples=60)
@given(groups(), st.booleans(), st.randoms(use_true_random=False))
def test_order_and_shift_change_nothing(texts: Texts, std: bool, random: Any) -> None:
    _, found = computed(texts, True, std)
    order = list(range(len(texts)))
    random.shuffle(order)
    _, shuffled = computed([texts[i] for i in order], True, std)
    np.testing.assert_allclose(shuffled.advantage, found.advantage[order], rtol=1e-12, atol=1e-12)
    moved = [{**t, "reward": t["reward"] + 8.0} for t in texts]
    for t in moved:
        for key in ("padding_value", "padding_reward"):
            if key in t:
                t[key] = t[key] + 8.0
    np.testing.assert_allclose(computed(moved, True, std)[1].advantage, found.advantage, rtol=1e-9, atol=1e-9)


@settings(max_examples=60)
@given(groups(), st.booleans())
def test_each_bucket_is_leave_one_out(texts: Texts, pad: bool) -> None:
    """Sums are 0 without padding; a lone row gets exactly 0, with and without std."""
    _, found = computed(texts, pad, False)
    lone = found.bucket_rows[found.bucket] == 1
    assert (found.advantage[lone] == 0).all()
    assert (computed(texts, pad, True)[1].advantage[lone] == 0).all()
    if not pad:
        sums = np.bincount(found.bucket, weights=found.advantage)
        np.testing.assert_allclose(sums, 0, atol=1e-12)
        assert found.padding_rows == 0 and (found.bucket_rows == found.bucket_samples).all()


@settings(max_examples=40)
@given(groups(), st.booleans())
def test_other_groups_and_masked_texts_change_nothing(texts: Texts, pad: bool) -> None:
    _, found = computed(texts, pad, True)
    mine = [i for i, t in enumerate(texts) if t["group_id"] == "g0"]
    _, alone = computed([texts[i] for i in mine], pad, True)
    np.testing.assert_allclose(alone.advantage, found.advantage[mine], rtol=1e-12, atol=1e-12)
    hidden = [
        {**t, "reward": -50.0, "masked": True, "metadata": {**t["metadata"], "rollout_index": 90 + i}}
        for i, t in enumerate(texts)
    ]
    mixed = [t for pair in zip(texts, hidden) for t in pair]
    visible = estimate(mixed, True, pad, True)
    for name in ("advantage", "group_tokens", "baseline"):
        np.testing.assert_array_equal(getattr(visible, name), getattr(found, name))
    assert visible.padding_rows == found.padding_rows


@settings(max_examples=40)
@given(groups())
def test_padding_rows_enter_statistics_and_nothing_else(texts: Texts) -> None:
    table, bare = computed(texts, False, False)
    _, padded = computed(texts, True, False)
    np.testing.assert_array_equal(padded.group_tokens, bare.group_tokens)
    assert len(padded.advantage) == len(texts) == int(padded.bucket_samples.sum())
    assert int(padded.bucket_rows.sum()) == len(texts) + padded.padding_rows
    counted = np.ones(len(table), bool)
    assert loss_scales(table, counted, "rollouts").policy.sum() == pytest.approx(
        (table.loss_weight * len(table) / len(np.unique(table.rollout_codes()))).sum()
    )


def test_the_filter_does_not_look_at_padding_rows() -> None:
    """Padding rows of 0 and 1 around a text of 0.5 differ from their baselines; the text does not."""
    texts = [text(0, 0, 0.5, situation="a"), text(0, 1, 0.25, situation="a")]
    texts += [text(i, 0, 0.25, situation="a", padding_value=float(i - 1)) for i in (1, 2)]
    table, found = computed(texts, True, False)
    assert found.padding_rows == 2 and (found.advantage == 0).all()
    assert zero_advantage_groups(table, found.advantage).all()


@settings(max_examples=60)
@given(groups(roles=True), st.sampled_from(["training_texts", "rollouts", "rollout_mean"]), st.data())
def test_role_masses_are_exact_and_every_text_counts_once(texts: Texts, mode: str, data: Any) -> None:
    weights = {"policy": 1 / 9, "critic": 8 / 9}
    table = table_of(texts)
    counted = np.array(data.draw(st.lists(st.booleans(), min_size=len(table), max_size=len(table))))
    base = loss_scales(table, counted, mode)
    plain = np.where(counted, base.policy, 0.0)
    found = loss_scales(table, counted, mode, weights)
    role = np.array([t["role"] for t in texts])
    total = plain.sum()
    for name, weight in weights.items():
        rows = counted & (role == name)
        if rows.any():
            assert found.policy[rows].sum() == pytest.approx(weight * total, rel=1e-9)
            assert found.role_samples[name] == rows.sum()
        else:
            assert name in found.missing_roles
    assert (found.policy[~counted] == 0).all() and (found.kl[~counted] == 0).all()
    assert found.kl.sum() == pytest.approx(total, rel=1e-9)
    assert sum(found.role_samples.values()) == counted.sum()
    if mode == "rollout_mean" and counted.any():
        shares = np.bincount(table.rollout_codes(), weights=plain)
        present = np.bincount(table.rollout_codes(), weights=counted) > 0
        unit = counted.sum() / present.sum()
        np.testing.assert_allclose(shares[present], unit, rtol=1e-12)


def columns(texts: Texts, rl: RLConfig) -> dict[str, bytes]:
    """Every numeric column that the trainer receives, as bytes."""
    ready = process_chunk(samples(texts), rl).ready
    apply_scales(ready, rl)
    plan = assemble_step(ready, 0, 48)
    out: dict[str, bytes] = {}
    for row, batch in enumerate(plan[0]):
        for name, value in batch.to_record().items():
            if isinstance(value, np.ndarray):
                out[f"{row}/{name}"] = value.tobytes()
    return out


def labelled_and_bare() -> tuple[Texts, Texts]:
    rng = np.random.default_rng(4)
    bare: Texts = []
    for rollout in range(4):
        reward = float(rng.normal())
        for step in range(int(rng.integers(1, 4))):
            one = record(f"g{rollout // 2}", rollout % 2, step, reward, 10 * rollout + step)
            one["ref_logprobs"] = one["logprobs"]
            bare.append(one)
    labelled = [
        t | {"situation": f"s{i % 2}", "role": f"r{i % 3}", "padding_value": 3.0, "padding_reward": None}
        for i, t in enumerate(bare)
    ]
    return labelled, bare


@pytest.mark.parametrize("std", [False, True])
def test_everything_off_is_bit_for_bit_the_default_path(std: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also: none of the code of situations, padding, counting and roles runs."""

    def forbidden(*_: object) -> None:
        raise AssertionError("code of situational rewards ran although everything is off")

    for module, names in (
        (situation_module, ("situation", "_front_padding", "_tail_padding", "tokens_per_rollout")),
        (loss_scale_module, ("_base_scale", "_apply_roles", "_columns", "is_counted", "loss_scales")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, forbidden)
    labelled, bare = labelled_and_bare()
    rl = RLConfig(divide_advantage_by_std=std)
    found, expected = columns(labelled, rl), columns(bare, rl)
    assert found == expected
    scales = [np.frombuffer(value, np.float32) for name, value in found.items() if "weight_scale" in name]
    assert scales and all((scale == 1.0).all() for scale in scales)


def test_a_rollout_without_texts_is_simply_not_there() -> None:
    """Three of four attempts left texts, one of them under an index that skips the missing one."""
    texts = [text(r, 0, reward) for r, reward in ((0, 1.0), (1, 0.0), (3, 0.5))]
    for steps in (False, True):
        found = estimate(texts, steps).advantage
        np.testing.assert_allclose(found, [0.75, -0.75, 0.0], atol=1e-12)


def test_labels_of_either_writer_give_the_same_table() -> None:
    """Typed fields, metadata keys, or both; None and NaN both mean absent."""
    typed = [text(0, s, 1.0, situation="a", padding_value=0.5) for s in range(2)] + [text(1, 0, 0.0)]
    keys = [
        text(
            0,
            s,
            1.0,
            metadata={
                "step_advantage_group": "a",
                "step_advantage_local_index": s,
                "step_advantage_segment_length": 2,
                "step_advantage_padding_value": 0.5,
            },
        )
        for s in range(2)
    ] + [text(1, 0, 0.0, metadata={"step_advantage_group": None, "padding_reward": math.nan})]
    both = [{**k, **{f: t.get(f) for f in ("situation", "padding_value")}} for k, t in zip(keys, typed)]
    expected = estimate(typed, True, True).advantage
    for other in (keys, both):
        np.testing.assert_array_equal(estimate(other, True, True).advantage, expected)


def test_a_pool_written_as_places_by_another_program_is_a_pool() -> None:
    place = {"step_advantage_local_index": 0, "step_advantage_segment_length": 1}
    rewards = [0.0, 1.0, 0.55]
    foreign = [text(0, s, r, metadata={"step_advantage_group": "c", **place}) for s, r in enumerate(rewards)]
    pooled = [text(0, s, r, situation="c", position="pool") for s, r in enumerate(rewards)]
    found = [estimate(texts, True).advantage for texts in (foreign, pooled)]
    np.testing.assert_array_equal(found[0], found[1])


def test_dropped_texts_do_not_move_given_places() -> None:
    """Places are used as they are given, although the segment's first text is gone."""
    given_ = {
        "step_advantage_group": "a",
        "step_advantage_local_index": 1,
        "step_advantage_segment_length": 2,
    }
    texts = [text(0, 1, 1.0, metadata=given_), text(1, 0, 0.0, situation="a"), text(1, 1, 0.5, situation="a")]
    np.testing.assert_allclose(estimate(texts, True).advantage, [0.5, 0.0, -0.5])
