"""A causal LM small enough to train within a test."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from pipelinerl.modeling.model import prepare_model
from tests.tiny_model import causal_lm

VOCAB = 31


def tiny_model(seed: int = 0, tied: bool = True) -> PreTrainedModel:
    return prepare_model(causal_lm(VOCAB, seed=seed, tied=tied))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def model() -> PreTrainedModel:
    return tiny_model()
