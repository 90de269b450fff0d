from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipelinerl.extras import recorder
from pipelinerl.llm import TrainableLLM
from tests.support.engine_harness import RunningEngine, running_engine
from tests.support.text_model import build_text_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer of bytes and a chat template."""
    return build_text_model(tmp_path_factory.mktemp("text"))


@pytest.fixture(autouse=True)
async def no_site_is_left() -> AsyncIterator[None]:
    yield
    await recorder.close()


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[RunningEngine]:
    async with running_engine(folder) as running:
        yield running


@pytest.fixture
def llm(folder: Path, engine: RunningEngine) -> TrainableLLM:
    return TrainableLLM(
        model_name=str(folder),
        base_url=engine.url,
        parameters={"max_tokens": 12, "temperature": 0.8},
        context_size=512,
        max_retries=0,
    )
