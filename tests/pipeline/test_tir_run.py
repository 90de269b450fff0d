"""Mathematics with a Python tool trains end to end, all processes real, the judge's server too."""

import pytest

from tests.pipeline.conftest import Start
from tests.support.sandbox_needed import need_a_sandbox

SIZES = [
    "model_path=domains/guessing/checkpoint",
    "dataset_loader_params={max_problems: 8}",
    "llm.parameters.max_tokens=8",
    "test_llm.parameters.max_tokens=8",
    "finetune.max_train_steps=1",
    "finetune.gradient_accumulation_passes=16",
    "max_lag=64",
]


@pytest.fixture(scope="module", autouse=True)
def what_it_needs() -> None:
    pytest.importorskip("math_verify", reason="pip install 'pipelinerl[math]'")
    need_a_sandbox()


@pytest.mark.slow
def test_mathematics_with_a_tool_trains(start: Start) -> None:
    names = start("+domain=tir", *SIZES).trained(steps=1, evaluated=8)
    assert {"actor/num_python_calls_mean", "actor/python_errors_mean"} <= names, sorted(names)
