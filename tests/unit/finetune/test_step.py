"""What an optimizer step adds up to, and which tokens have no say in it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from pipelinerl.config.finetune import RLConfig
from pipelinerl.config.staleness import Staleness
from pipelinerl.finetune.metrics import METRICS, StepStatistics, step_metrics, token_statistics
from pipelinerl.finetune.peaks import Hardware
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding, assemble_step, encode, sentinel_batch
from pipelinerl.finetune.rl.labels import label_statistics
from pipelinerl.finetune.rl.losses import LOSSES, Coefficients, LossInputs, policy_loss
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.modeling.value_head import build_value_head
from pipelinerl.situations import LARGEST
from tests.support.builders import ready
from tests.support.policy import learner, tiny_model


def metrics_of(counts: StepStatistics) -> dict[str, Any]:
    return step_metrics(counts, Coefficients(), 1, Hardware(16, 1, None))


def gradients(
    batches: list[PipelineBatchEncoding], rl: RLConfig, version: int = 0, max_lag: int | None = None
) -> tuple[dict[str, torch.Tensor], list[list[float]]]:
    model = tiny_model()
    one = learner(rl, model)
    vectors = [
        one.accumulate(batch, targets_of(batch, rl, version, Staleness(max_lag)), Coefficients(0.1, 0.01))
        for batch in batches
    ]
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return found, [v.vector.tolist() for v in vectors if v is not None]


def texts(n: int) -> list[Sample]:
    return [ready(i, (-1.0) ** i * (1 + i)) for i in range(n)]


@pytest.mark.parametrize("loss", ["reinforce", "ppo", "sft"])
@pytest.mark.parametrize("seq_length", [12, 30])
def test_micro_batches_add_up_to_one_large_batch(loss: str, seq_length: int) -> None:
    rl = RLConfig(policy_loss=loss, epsilon_high=4.0, kl_coef=0.1, entropy_bonus=0.01)
    whole, whole_vector = gradients([encode(texts(7), 0, 7)], rl)
    parts, part_vectors = gradients(assemble_step(texts(7), 0, seq_length)[0], rl)
    assert len(part_vectors) > 1
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, atol=1e-5, rtol=1e-4)
    one = metrics_of(StepStatistics(whole_vector, 7))
    many = metrics_of(StepStatistics(part_vectors, 7))
    for name in ("rl/loss", "rl/ess", "rl/kl", "rl/entropy", "rl/ratio_new_old", "rl/max_advantage"):
        assert many[name] == pytest.approx(one[name], rel=1e-4), name


def test_several_ranks_give_the_gradient_of_one() -> None:
    rl = RLConfig(epsilon_high=4.0)
    whole, _ = gradients([encode(texts(7), 0, 7)], rl)
    plan = assemble_step(texts(7), 0, 24, ranks=3)
    per_rank = [gradients(batches, rl)[0] for batches in plan]
    for name, gradient in whole.items():
        total = sum((found[name] for found in per_rank), torch.zeros_like(gradient))
        torch.testing.assert_close(total, gradient, atol=1e-5, rtol=1e-4)


def test_sentinels_add_nothing() -> None:
    found, vectors = gradients([sentinel_batch(0, 4)], RLConfig())
    assert found == {} and vectors == []
    assert assemble_step(texts(1), 0, 24, ranks=2)[1][0].sentinel


def test_stale_tokens_have_no_gradient() -> None:
    fresh = [ready(1, 1.0, version=8), ready(2, -1.0, version=8)]
    old = ready(3, 5.0, version=0)
    rl = RLConfig(epsilon_high=4.0, kl_coef=0.1)
    with_old = encode([*fresh, old], 0, 3)
    expected, _ = gradients([encode(fresh, 0, 3)], rl)
    bounded, _ = gradients([with_old], rl, version=12, max_lag=4)
    for name, gradient in expected.items():
        torch.testing.assert_close(bounded[name], gradient, atol=1e-6, rtol=1e-5)
    targets = targets_of(with_old, rl, 12, Staleness(4))
    assert targets.stale_samples().tolist() == [False, False, True]
    assert targets.samples_with_gradient().tolist() == [True, True, False]
    assert targets_of(with_old, rl, 12).samples_with_gradient().all()


def test_half_old_texts_keep_their_fresh_tokens() -> None:
    text = ready(1, 1.0, version=0)
    sampled = len(text.old_logprobs)
    text.weight_versions = [(0, 0, 1), (10, 1, sampled)]
    targets = targets_of(encode([text], 0, 1), RLConfig(), 12, Staleness(4))
    assert targets.stale.tolist() == [True] + [False] * (sampled - 1)
    assert targets.weight[0] == 0 and (targets.weight[1:] == 1).all()
    assert not targets.stale_samples().any()


def test_lr_zero_gives_ratio_one(model: PreTrainedModel) -> None:
    one = learner(RLConfig(temperature=0.7), model)
    chosen = [ready(i) for i in range(4)]
    rows = encode(chosen, 0, 4)
    inputs = one._loss_inputs(rows, targets_of(rows, one.rl))
    at = 0
    for text in chosen:
        n = len(text.old_logprobs)
        text.old_logprobs = inputs.logprobs_N[at : at + n].detach().numpy()
        at += n
    vectors = []
    for batch in assemble_step(chosen, 0, 16)[0]:
        measured = one.accumulate(batch, targets_of(batch, one.rl), Coefficients())
        assert measured is not None
        vectors.append(measured.vector.tolist())
    one.apply()
    metrics = metrics_of(StepStatistics(vectors, 4))
    for name in ("rl/ratio_new_old", "rl/max_ratio_new_old", "rl/min_ratio_new_old", "rl/ess"):
        assert metrics[name] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("loss", LOSSES)
def test_ess_uses_unclamped_ratios(loss: Any) -> None:
    ratios = torch.tensor([1.0, 1.0, 1.0, 2.7913])  # an effective sample size of 0.777
    zeros = torch.zeros(4)
    columns = [ratios.log(), zeros, zeros, zeros, zeros, zeros, zeros, zeros]
    inputs = LossInputs(*columns, torch.zeros(4, dtype=torch.int64), 1)
    rl = RLConfig(policy_loss=loss, epsilon_low=0.1, epsilon_high=0.1)
    vector = token_statistics(inputs, torch.full((4,), 4.0), torch.zeros(()), rl, 4)
    metrics = metrics_of(StepStatistics([vector.tolist()], 1))
    assert metrics["rl/ess"] == pytest.approx(0.777, abs=1e-4)


def test_token_weights_follow_the_options() -> None:
    long = ready(1, overflow=True, group_tokens=5.0)
    batch = encode([long, ready(2, loss_weight_scale=2.0, kl_weight_scale=3.0, group_tokens=5.0)], 0, 8)
    plain = targets_of(batch, RLConfig())
    first, second = plain.sample == 0, plain.sample == 1
    assert (plain.weight[first] == 1 / 8).all() and (plain.weight[second] == 2 / 8).all()
    assert (plain.kl_weight[second] == 3 / 8).all()
    filtered = targets_of(batch, RLConfig(overlong_filtering=True, group_normalization=True))
    assert (filtered.weight[first] == 0).all()
    np.testing.assert_allclose(filtered.weight[second], 2 / 5)


def test_a_gradient_that_is_not_finite_changes_nothing(model: PreTrainedModel) -> None:
    one = learner(RLConfig(), model, 0.1)
    before = [p.clone() for p in model.parameters()]
    batch = encode([ready(1, float("inf"))], 0, 1)
    one.accumulate(batch, targets_of(batch, one.rl), Coefficients())
    with pytest.raises(FloatingPointError, match="the weights were not changed"):
        one.apply()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


@pytest.mark.parametrize("loss", ["reinforce", "ppo", "gspo"])
def test_the_largest_advantages_that_pass_are_trained(model: PreTrainedModel, loss: str) -> None:
    one = learner(RLConfig(policy_loss=loss, epsilon_high=4.0), model, 0.1)
    samples = [ready(i, (-1.0) ** i * 2 * LARGEST) for i in range(7)]
    batch = encode(samples, 0, 1)  # nothing divides the sum over texts
    one.accumulate(batch, targets_of(batch, one.rl), Coefficients())
    assert np.isfinite(one.apply())
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_clipping_limits_the_step(model: PreTrainedModel) -> None:
    one = replace(learner(RLConfig(), model, 1.0), gradient_clipping_threshold=1e-3)
    before = torch.cat([p.detach().flatten() for p in model.parameters()]).clone()
    batch = encode(texts(3), 0, 3)
    one.accumulate(batch, targets_of(batch, one.rl), Coefficients())
    assert one.apply() > 1e-3
    moved = torch.cat([p.detach().flatten() for p in model.parameters()]) - before
    assert float(moved.norm()) == pytest.approx(1e-3, rel=1e-2)


def test_scores_of_rows_match_the_packed_forward(model: PreTrainedModel) -> None:
    one = learner(RLConfig(), model)
    ids = np.random.default_rng(0).integers(0, 31, (3, 6)).astype(np.int32)
    scores = one.score_rows(ids)
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(ids.astype(np.int64))).logits.log_softmax(-1)
    expected = logits[:, :-1].gather(2, torch.from_numpy(ids[:, 1:].astype(np.int64))[..., None])[..., 0]
    np.testing.assert_allclose(scores, expected.numpy(), atol=1e-5)


def test_records_survive_the_stream_and_name_what_is_missing() -> None:
    batch = encode(texts(2), 3, 2)
    values: dict[str, Any] = batch.to_record()
    again = PipelineBatchEncoding.from_record(values)
    assert again.step == 3 and np.array_equal(again.advantages, batch.advantages)
    with pytest.raises(ValueError, match=r"incomplete.*advantages"):
        PipelineBatchEncoding.from_record({k: v for k, v in values.items() if k != "advantages"})
    with pytest.raises(ValueError, match="training_data column labels has shape"):
        PipelineBatchEncoding.from_record(values | {"labels": batch.labels[:, :-1]})


def test_role_and_situation_statistics(model: PreTrainedModel) -> None:
    one = learner(RLConfig(), model)
    labelled = [ready(i, float(i), role="ab"[i % 2], situation=f"hop:{i}:plan") for i in range(4)]
    batch = encode(labelled, 0, 4)
    targets = targets_of(batch, one.rl)
    measured = one.accumulate(batch, targets, Coefficients())
    assert measured is not None
    found = label_statistics(batch, targets, *measured.texts_3S.numpy())
    assert found.keys() == {"role/a", "role/b", "situation/hop:plan"}
    assert found["role/b"].texts == 2 and found["role/b"].advantage == pytest.approx(4.0)
    whole = dict(zip([metric.name for metric in METRICS], measured.vector.tolist()))
    assert found["situation/hop:plan"].kl == pytest.approx(whole["rl/kl"], rel=1e-5)


def test_by_role_the_advantage_is_that_of_the_loss_also_with_a_value_head(model: PreTrainedModel) -> None:
    head = build_value_head(model)
    torch.nn.init.constant_(head.bias, 0.25)
    one = learner(RLConfig(value_loss_coef=0.5), model, value_head=head)
    batch = encode([ready(i, 3.0, role="a", reward=1.0) for i in range(2)], 0, 2)
    targets = targets_of(batch, one.rl)
    measured = one.accumulate(batch, targets, Coefficients())
    assert measured is not None
    found = label_statistics(batch, targets, *measured.texts_3S.numpy())
    assert found["role/a"].advantage == pytest.approx(2 * 0.75)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("reinforce", [0, 1, 1, 0]),
        ("ppo", [1, 1, 1, 0]),
        ("cispo", [1, 1, 1, 0]),
        ("gspo", [0, 0, 1, 1]),
        ("sft", [0, 0, 0, 0]),
    ],
)
def test_a_token_counts_as_clipped_where_its_loss_clips(loss: str, expected: list[int]) -> None:
    """Both ratios of text 0 are beyond the clip, not their mean; of text 1 one ratio and the mean."""
    new, zeros, ones = torch.tensor([-0.5, 0.5, 0.15, 0.05]), torch.zeros(4), torch.ones(4)
    inputs = LossInputs(new, *[zeros] * 5, ones, ones, torch.tensor([0, 0, 1, 1]), 2)
    rl = RLConfig(policy_loss=loss, epsilon_low=0.2, epsilon_high=0.1)
    assert policy_loss(rl.policy_loss).clipped_N(inputs, rl).tolist() == expected
