"""Mathematics with a Python tool trains end to end, all processes real, the judge's server too."""

import pytest

from pipelinerl.observe.history import read_metrics
from pipelinerl.run_state.accounting import Outcome
from tests.pipeline.conftest import Start
from tests.support.metric_tables import check_run
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
    run = start("+domain=tir", *SIZES)
    assert run.wait() == 0, run.err
    assert run.summary()["completed_steps"] == 1 and not run.children()
    counts = run.counts()
    assert counts.eval_started == 2 * 8 == counts.eval_ends[Outcome.EVAL_DONE]
    check_run(run.output_dir)
    names = {name for record in read_metrics(run.output_dir, "actor") for name in record}
    assert {"actor/num_python_calls_mean", "actor/python_errors_mean"} <= names, sorted(names)
