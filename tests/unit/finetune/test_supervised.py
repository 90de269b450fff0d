"""The supervised entry learns, follows its schedule and decays only matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from pipelinerl.finetune.data import MASKED_TOKEN_ID
from pipelinerl.finetune.optimiser import build_optimiser
from pipelinerl.finetune.schedulers import build_scheduler, learning_rate_factor
from pipelinerl.finetune.supervised import PackedBatch, mean_nll, pack_texts, train_supervised
from tests.unit.finetune.conftest import tiny_model


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


def test_loss_falls_and_is_logged(model: PreTrainedModel) -> None:
    batches = list(pack_texts(copy_texts(64, 0), 64))
    before = mean_nll(model, batches)
    records: list[dict[str, float]] = []
    repeated = (batches[i % len(batches)] for i in range(1000))
    summary = train_supervised(model, repeated, 60, 1e-2, log=records.append, log_every=20)
    assert mean_nll(model, batches) < 0.7 * before
    assert summary.steps == 60 and [r["step"] for r in records] == [20, 40, 60]
    assert summary.targets > 0 and np.isfinite(summary.final_loss)


def test_a_finite_source_ends_training(model: PreTrainedModel) -> None:
    assert train_supervised(model, pack_texts(copy_texts(8, 0), 16), 1000).steps < 10


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


def test_decay_skips_norms_and_biases(model: PreTrainedModel) -> None:
    optimiser = build_optimiser(model, weight_decay=0.1)
    decayed, plain = optimiser.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert all(p.dim() == 2 for p in decayed["params"]) and all(p.dim() == 1 for p in plain["params"])
    assert sum(len(g["params"]) for g in optimiser.param_groups) == len(list(model.parameters()))
    with pytest.raises(ValueError, match="optim=sgd is not available; use one of adamw_torch"):
        build_optimiser(model, "sgd")


def test_schedules() -> None:
    assert learning_rate_factor(0, "constant", 5, 10) == 1.0
    assert learning_rate_factor(0, "cosine", 4, 10) == pytest.approx(0.2)
    assert learning_rate_factor(4, "cosine", 4, 10) == pytest.approx(1.0)
    assert learning_rate_factor(10, "cosine", 4, 10) == pytest.approx(0.0)
    assert learning_rate_factor(7, "linear", 4, 10) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="lr_scheduler_type=step is unknown"):
        build_scheduler(torch.optim.SGD([torch.zeros(1)]), "step", 0, 1)
