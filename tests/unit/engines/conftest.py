from pathlib import Path

import pytest
import torch

from tests.support.engine_harness import build_llama, build_model
from tests.support.text_model import build_text_model

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tied_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("tied"), tied=True)


@pytest.fixture(scope="session")
def untied_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("untied"), tied=False)


@pytest.fixture(scope="session")
def llama_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_llama(tmp_path_factory.mktemp("llama"), tie_word_embeddings=True)


@pytest.fixture(scope="session")
def other_tied_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unrelated weights of the same shape."""
    return build_model(tmp_path_factory.mktemp("other"), tied=True, seed=1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer and a chat template."""
    return build_text_model(tmp_path_factory.mktemp("text"))
