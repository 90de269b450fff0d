"""The supervised entry learns, follows its schedule and decays only matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from pipelinerl.finetune.schedulers import build_scheduler, learning_rate_factor
from pipelinerl.finetune.supervised import PackedBatch, train_supervised
from pipelinerl.rollouts import MASKED_TOKEN_ID
from tests.support.policy import tiny_model


def copy_texts(n: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(n):
        ids = rng.integers(1, 8, int(rng.integers(4, 9)))
        ids[-1] = ids[0]
        labels = np.full(len(ids), MASKED_TOKEN_ID)
        labels[-1] = ids[-1]
        texts.append((ids, labels))
    return texts


def packed(texts: list[tuple[np.ndarray, np.ndarray]], per_row: int) -> list[PackedBatch]:
    return [PackedBatch.from_texts(texts[at : at + per_row]) for at in range(0, len(texts), per_row)]


def test_loss_falls_and_is_logged(model: PreTrainedModel) -> None:
    batches = packed(copy_texts(64, 0), 8)
    records: list[dict[str, float]] = []
    repeated = (batches[i % len(batches)] for i in range(1000))
    summary = train_supervised(model, repeated, 60, 1e-2, log=records.append, log_every=20)
    assert [r["step"] for r in records] == [20, 40, 60] == [step for step, _ in summary.losses]
    assert records[-1]["loss"] < 0.7 * records[0]["loss"] and summary.final_loss == records[-1]["loss"]
    assert summary.steps == 60 and summary.targets > 0


def test_a_finite_source_ends_training(model: PreTrainedModel) -> None:
    assert train_supervised(model, packed(copy_texts(8, 0), 2), 1000).steps == 4


def test_errors_of_the_batch_source_surface(model: PreTrainedModel) -> None:
    def broken() -> PackedBatch:
        raise RuntimeError("no such world")

    with pytest.raises(RuntimeError, match="no such world"):
        train_supervised(model, (broken() for _ in range(3)), 3)


def test_a_text_of_weight_zero_teaches_nothing() -> None:
    texts = copy_texts(2, 1)
    weighted, alone = tiny_model(), tiny_model()
    train_supervised(weighted, [PackedBatch.from_texts(texts, weights=[1.0, 0.0])], 1, 1e-2, "constant")
    train_supervised(alone, [PackedBatch.from_texts(texts[:1])], 1, 1e-2, "constant")
    for ours, expected in zip(weighted.parameters(), alone.parameters()):
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-4)


def test_schedules() -> None:
    assert learning_rate_factor(0, "constant", 5, 10) == 1.0
    assert learning_rate_factor(0, "cosine", 4, 10) == pytest.approx(0.2)
    assert learning_rate_factor(4, "cosine", 4, 10) == pytest.approx(1.0)
    assert learning_rate_factor(10, "cosine", 4, 10) == pytest.approx(0.0)
    assert learning_rate_factor(7, "linear", 4, 10) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="lr_scheduler_type=step is unknown"):
        build_scheduler(torch.optim.SGD([torch.zeros(1)]), "step", 0, 1)
