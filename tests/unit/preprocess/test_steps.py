"""Exactly B texts per step, packed, weighted over the step, each text leaving exactly once."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.batch import assemble_step
from pipelinerl.preprocess.buffer import SampleBuffer
from pipelinerl.preprocess.chunk import process_chunk
from pipelinerl.preprocess.loop import _recording_ends
from tests.support.builders import group, ready, record, samples
from tests.support.policy import VOCAB, learner, tiny_model
from tests.unit.preprocess.conftest import Bench


def test_steps_hold_exactly_b_texts_once_each(bench: Bench) -> None:
    sent = []
    for number in range(9):
        texts = group(number, attempts=3)
        sent += [(t["group_id"], t["metadata"]["rollout_index"], 0) for t in texts]
        bench.preprocess.take_groups([texts])
        bench.trainer.samples_processed = bench.preprocess.published
        bench.preprocess.write_steps()
    batches = bench.batches()
    per_step = Counter(batch.step for batch in batches for _ in batch.text_ids)
    assert per_step == {0: 8, 1: 8, 2: 8}
    found = [tuple(t) for batch in batches for t in batch.text_ids]
    assert set(found) <= set(sent) and len(found) == len(set(found)) == 24
    assert [b.step for b in batches if b.is_last] == [0, 1, 2]
    assert bench.preprocess.published == 24


def test_a_single_small_group_is_not_held_back(bench: Bench) -> None:
    bench.preprocess.take_groups([group(0, attempts=4, steps=2)])
    assert bench.preprocess.write_steps()


def test_the_trainer_is_not_outrun(bench: Bench) -> None:
    for number in range(60):
        bench.preprocess.take_groups([group(number)])
        bench.preprocess.write_steps()
    assert bench.preprocess.published == 72  # 64 may wait, and one step goes beyond
    bench.trainer.samples_processed = 16
    assert bench.preprocess.write_steps() and bench.preprocess.published == 88


@pytest.mark.parametrize(
    "bench", [{"finetune": {"rl": {"filter_zero_advantage_groups": True}}}], indirect=True
)
def test_equal_rewards_are_filtered_refunded_and_written_down(bench: Bench) -> None:
    texts = group(0)
    for text in texts:
        text["reward"] = 1.0
    bench.preprocess.take_groups([texts, group(1)])
    assert bench.discarded.counts == {"zero_advantage": 4}
    assert bench.ends() == {("filtered", "zero_advantage"): 4}
    assert not bench.preprocess.write_steps()


def test_masked_and_baseline_only_texts_never_reach_the_trainer(bench: Bench) -> None:
    texts = group(0, steps=2)
    texts[0]["masked"] = True
    texts[2]["loss_weight"] = texts[3]["loss_weight"] = 0.0
    bench.preprocess.take_groups([texts, group(1)])
    bench.preprocess.write_steps()
    found = {tuple(t) for batch in bench.batches() for t in batch.text_ids}
    assert not {("g0", 0, 0), ("g0", 1, 0), ("g0", 1, 1)} & found and len(found) == 8
    assert bench.discarded.counts == {"masked": 1, "baseline_only": 2}
    assert bench.ends() == {("filtered", "baseline_only"): 1}


@pytest.mark.parametrize("bench", [{"max_lag": 4}], indirect=True)
def test_texts_beyond_the_lag_bound_are_replaced_and_refunded(bench: Bench) -> None:
    bench.preprocess.take_groups([group(0, version=0)])
    bench.trainer.propagated_weight_version = 5
    bench.preprocess.take_groups([group(1, version=5)])
    assert not bench.preprocess.write_steps()
    assert bench.discarded.counts == {"stale": 4} and bench.ends() == {("stale", "max_lag_in_queue"): 4}
    bench.preprocess.take_groups([group(2, version=5)])
    assert bench.preprocess.write_steps()


@pytest.mark.parametrize("bench", [{"max_lag": 0}], indirect=True)
def test_a_step_written_ahead_holds_nothing_that_is_too_old_when_it_is_trained(bench: Bench) -> None:
    """Of two steps of one version the second would be trained on the next version."""
    bench.preprocess.take_groups([group(number, version=0) for number in range(4)])
    assert bench.preprocess.write_steps()
    assert {batch.step for batch in bench.batches()} == {0}
    assert bench.discarded.counts == {"stale": 8}


@pytest.mark.parametrize("bench", [{"preprocess": {"ring_buffer_size": 10}}], indirect=True)
def test_without_a_bound_the_oldest_texts_are_popped(bench: Bench) -> None:
    bench.trainer.samples_processed = -1000
    for number in range(5):
        bench.preprocess.take_groups([group(number)])
        bench.preprocess.write_steps()
    assert bench.discarded.counts == {"popped": 10} and bench.ends() == {("filtered", "popped"): 10}


@pytest.mark.parametrize(
    "bench",
    [
        {
            "preprocess": {"ring_buffer_size": 10},
            "debug": {"mode": "finetune+preprocessor", "streams_from": "recorded"},
        }
    ],
    indirect=True,
)
def test_a_replay_waits_for_its_trainer_and_drops_nothing(bench: Bench) -> None:
    """As upstream's debug modes do; a recording that is read faster than it is trained would be lost."""
    bench.trainer.samples_processed = -1000
    for number in range(3):
        assert not bench.preprocess.is_full
        bench.preprocess.take_groups([group(number)])
        bench.preprocess.write_steps()
    assert bench.preprocess.is_full and len(bench.preprocess.buffer) == 12
    bench.trainer.samples_processed = 0
    assert bench.preprocess.write_steps() and not bench.preprocess.is_full
    assert bench.discarded.counts == {}


@pytest.mark.parametrize(
    "bench",
    [
        {
            "debug": {"mode": "finetune+preprocessor", "streams_from": "recorded"},
            "jobs": [{"kind": "finetune", "idx": 0}],
        }
    ],
    indirect=True,
)
def test_a_recording_without_a_whole_step_is_not_blamed_on_the_number_of_steps(bench: Bench) -> None:
    """A run has at least one step."""
    bench.preprocess.take_groups([group(0)])
    assert not bench.preprocess.write_steps()
    with pytest.raises(ValueError, match=r"ends after 0 of .*; give one with more samples, or lower"):
        _recording_ends(bench.preprocess, Path("recorded"))
    bench.preprocess.take_groups([group(1)])
    assert bench.preprocess.write_steps()
    with pytest.raises(ValueError, match=r"ends after 1 of .*; set finetune\.max_train_steps=1 or lower"):
        _recording_ends(bench.preprocess, Path("recorded"))


@pytest.mark.parametrize(
    "bench",
    [
        {
            "preprocess": {"ring_buffer_size": 16, "dataset_buffer_size": 16},
            "pop_old_data": False,
            "finetune": {"max_train_steps": 5},
        }
    ],
    indirect=True,
)
def test_a_dataset_buffer_fills_again_before_each_of_its_steps_is_written(bench: Bench) -> None:
    """As upstream's: with it several steps are trained on what older weights have sampled."""
    written = []
    for number in range(12):
        bench.preprocess.take_groups([group(number)])
        bench.preprocess.write_steps()
        written.append(bench.preprocess.step)
    # Groups of 4, steps of 8: two steps at a time, and the last alone, because no further one is wanted.
    assert written == [0, 0, 0, 2, 2, 2, 2, 4, 4, 5, 5, 5]


def test_an_emptied_chunk_publishes_nothing(bench: Bench) -> None:
    broken = group(0)
    for text in broken:
        text["reward"] = float("nan")
    bench.preprocess.take_groups([broken])
    assert not bench.preprocess.write_steps() and bench.batches() == []
    assert bench.ends() == {("filtered", "not_finite"): 4}


@hypothesis_settings(max_examples=60)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.integers(1, 12))
def test_cuts_only_when_whole_rollouts_do_not_fit(sizes: list[int], n: int) -> None:
    buffer = SampleBuffer()
    for rollout, size in enumerate(sizes):
        buffer.add(ready(1, group_id="g", rollout_index=rollout, step_index=s) for s in range(size))
    n = min(n, sum(sizes))
    taken, split = buffer.take(n)
    assert len(taken) == n and len(buffer) == sum(sizes) - n
    counts = Counter(text.rollout_index for text in taken)
    cut = [r for r, count in counts.items() if count < sizes[r]]
    assert len(cut) == split <= 1
    if all(size == 1 for size in sizes):
        assert split == 0


def test_token_columns_land_on_their_tokens() -> None:
    texts = [ready(1, 2.0, version=3), ready(2, -1.0, version=4)]
    batch = assemble_step(texts, 0, 64)[0][0]
    learned = batch.labels[0] != -100
    np.testing.assert_array_equal(
        batch.old_logprobs[0][learned], np.concatenate([t.old_logprobs for t in texts])
    )
    assert (batch.old_logprobs[0][~learned] == 0).all()
    assert set(batch.token_versions[0][learned]) == {3, 4} and batch.model_version == 3
    assert (batch.token_versions[0][~learned] == -1).all()
    assert batch.advantages[0][0] == 2.0 and batch.advantages[0][-1] == -1.0
    starts = batch.position_ids[0] == 0
    assert (batch.labels[0][starts] == -100).all() and starts.sum() == 2


def test_unpacked_rows_hold_one_text_each() -> None:
    plan = assemble_step([ready(i) for i in range(5)], 0, 64, 2, packing=False)
    assert sorted(len(batches) for batches in plan) == [2, 3]
    assert all(batch.n_texts == 1 for batches in plan for batch in batches)


def test_overflow_and_kept_order() -> None:
    cut, whole, open_ended, eos, prompt_has_it = samples(
        [
            record("g0", 0, 0, 1.0, 1, finish_reason="length", finished=False),
            record("g0", 1, 0, 0.0, 2, finish_reason=" STOP ", finished=False),
            record("g0", 2, 0, 0.5, 3, finished=False),
            record("g0", 3, 0, 0.5, 4, finished=False),
            record("g0", 3, 1, 0.5, 4, finished=False),
        ]
    )
    eos_id = int(eos.input_ids[-1])
    prompt_has_it.input_ids[0] = eos_id
    for without_it_in_the_output in (open_ended, prompt_has_it):
        labels = without_it_in_the_output.labels
        without_it_in_the_output.labels = np.where(labels == eos_id, -100, labels)
    result = process_chunk([cut, whole, eos], RLConfig(), (VOCAB - 1, eos_id))
    assert [sample.overflow for sample in result.ready] == [True, False, False]
    for without_it_in_the_output in (open_ended, prompt_has_it):
        again = process_chunk([without_it_in_the_output], RLConfig(), (eos_id,))
        assert again.ready[0].overflow


def test_reference_scores_match_the_policy_at_its_temperature(tmp_path: Path) -> None:
    from pipelinerl.finetune.rl.targets import targets_of
    from pipelinerl.preprocess.reference import ReferenceScorer

    model = tiny_model()
    model.save_pretrained(tmp_path)
    scorer = ReferenceScorer(str(tmp_path), 0.7, 16)
    chosen = samples([record("g0", i, 0, 0.0, i) for i in range(5)])
    scores = scorer.score(chosen)
    one = learner(RLConfig(temperature=0.7), model)
    for sample, found in zip(chosen, scores, strict=True):
        assert found is not None
        sample.ref_logprobs = found
        batch = assemble_step([sample], 0, 64)[0][0]
        with torch.no_grad():
            inputs = one._loss_inputs(batch, targets_of(batch, one.rl))
        np.testing.assert_allclose(inputs.logprobs_N.numpy(), found, atol=1e-5)
