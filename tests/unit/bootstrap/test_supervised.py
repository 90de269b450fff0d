"""Supervised training learns, says so, weighs its labels, and goes on where it was stopped."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from pipelinerl.extras.bootstrap.demonstrations import Encoded
from pipelinerl.extras.bootstrap.packs import PackedBatch, joined
from pipelinerl.extras.bootstrap.supervised import Resumable, train_supervised, validation_loss
from pipelinerl.modeling.policy import Policy
from pipelinerl.rollouts import MASKED_TOKEN_ID
from tests.support.policy import tiny_model


def copy_texts(n: int, seed: int, weights: tuple[float, ...] = (1.0,)) -> list[Encoded]:
    """Sequences whose last token is their first one; that is what is learned."""
    rng = np.random.default_rng(seed)
    texts = []
    for number in range(n):
        ids = rng.integers(1, 8, int(rng.integers(4, 9))).astype(np.int32)
        ids[-1] = ids[0]
        labels = np.full(len(ids), MASKED_TOKEN_ID, np.int32)
        labels[-1] = ids[-1]
        texts.append(Encoded(ids, labels, np.full(len(ids), weights[number % len(weights)], np.float32)))
    return texts


def train(model: PreTrainedModel, batches: list[PackedBatch], log_every: int = 1) -> list[dict[str, float]]:
    records: list[dict[str, float]] = []
    train_supervised(model, batches, len(batches), 1e-2, 1, 0.0, records.append, log_every)
    return records


def test_loss_falls_and_is_logged() -> None:
    batches = [joined(copy_texts(64, 0)[at : at + 8]) for at in range(0, 64, 8)] * 8
    records = train(tiny_model(), batches[:50], log_every=20)
    assert [r["step"] for r in records] == [20, 40, 50]
    assert records[-1]["loss"] < 0.7 * records[0]["loss"]
    assert records[-1]["tokens"] == sum(len(batch.input_ids) for batch in batches[:50])


def test_a_text_of_weight_zero_teaches_nothing() -> None:
    weighted, alone = tiny_model(), tiny_model()
    texts = copy_texts(2, 1, weights=(1.0, 0.0))
    train(weighted, [joined(texts)])
    train(alone, [joined(texts[:1])])
    for ours, expected in zip(weighted.parameters(), alone.parameters()):
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-4)


def test_a_loss_that_is_not_finite_ends_training() -> None:
    (text,) = copy_texts(1, 0, weights=(float("nan"),))
    with pytest.raises(FloatingPointError, match="supervised loss is nan at step 1; lower learning_rate"):
        train(tiny_model(), [joined([text])])


def test_training_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    batches = [joined(copy_texts(8, seed)) for seed in range(6)]
    whole, stopped = tiny_model(), tiny_model()
    train(whole, batches)

    def resumable(asked: str = "this") -> Resumable:
        return Resumable(tmp_path / "training.pt", 2, {"recipe": asked})

    def go_on(model: PreTrainedModel, rows: list[PackedBatch], state: Resumable) -> list[dict[str, float]]:
        records: list[dict[str, float]] = []
        train_supervised(model, rows, 6, 1e-2, 1, 0.0, records.append, 1, resumable=state)
        return records

    go_on(stopped, batches[:5], resumable())  # the fifth step is behind the last state
    again = resumable()
    assert (again.step, again.starts) == (4, 1)
    records = go_on(tiny_model(seed=7), batches[4:], again)
    assert [record["step"] for record in records] == [5, 6]
    last = torch.load(tmp_path / "training.pt", weights_only=True)["model"]
    for name, expected in whole.state_dict().items():
        torch.testing.assert_close(last[name], expected, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"training\.pt belongs to another recipe; remove it"):
        resumable("that")


def test_the_loss_on_held_out_texts_is_the_mean_over_their_labels() -> None:
    model, rows = tiny_model(), [joined(copy_texts(count, 3)) for count in (2, 6)]
    records: list[dict[str, float]] = []
    train_supervised(model, rows[:1], 1, 0.0, 1, 0.0, records.append, 1, held_out=rows)
    policy = Policy(model)
    one, six = (validation_loss(policy, [row], torch.device("cpu")) for row in rows)
    assert records[0]["validation_loss"] == pytest.approx((2 * one + 6 * six) / 8, rel=1e-5)
