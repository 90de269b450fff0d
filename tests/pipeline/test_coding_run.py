"""Programming problems train end to end, all processes real, and the sandbox leaves nothing behind."""

import pytest

from pipelinerl.observe.history import read_metrics
from pipelinerl.run_state.accounting import Outcome
from tests.pipeline.conftest import Start
from tests.support.metric_tables import check_run
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


def test_programming_problems_train(start: Start) -> None:
    run = start("+domain=coding", *SIZES)
    assert run.wait() == 0, run.err
    assert run.summary()["completed_steps"] == 1 and not run.children()
    counts = run.counts()
    assert counts.eval_started == 2 * 4 == counts.eval_ends[Outcome.EVAL_DONE]
    check_run(run.output_dir)
    records = read_metrics(run.output_dir, "actor")
    names = {name for record in records for name in record}
    assert {"actor/tiny_train/passed_mean", "actor/tiny_test/success_mean"} <= names, sorted(names)
