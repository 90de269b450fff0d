"""Programming problems train end to end, all processes real, and the sandbox leaves nothing behind."""

import pytest

from tests.pipeline.conftest import Start
from tests.support.sandbox_needed import need_a_sandbox

SIZES = [
    "model_path=domains/guessing/checkpoint",
    "dataset_loader_params={count: 16, test_count: 4}",
    "llm.parameters.max_tokens=16",
    "test_llm.parameters.max_tokens=16",
    "finetune.max_train_steps=1",
    "finetune.gradient_accumulation_passes=16",
    "max_lag=64",
]


@pytest.fixture(scope="module", autouse=True)
def a_sandbox() -> None:
    need_a_sandbox()


@pytest.mark.slow
def test_programming_problems_train(start: Start) -> None:
    names = start("+domain=coding", *SIZES).trained(steps=1, evaluated=4)
    assert {"actor/tiny_train/passed_mean", "actor/tiny_test/success_mean"} <= names, sorted(names)
