"""What tests of trainer, models and preprocess start from."""

import pytest
import torch
from transformers import PreTrainedModel

from tests.support.policy import tiny_model


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def model() -> PreTrainedModel:
    return tiny_model()
