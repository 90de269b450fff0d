"""A mixture of generated families trains end to end, all processes real, with figures for each family."""

import importlib.util

import pytest

from pipelinerl.observe.history import read_metrics
from pipelinerl.run_state.accounting import Outcome
from tests.pipeline.conftest import Start
from tests.support.metric_tables import check_run

SIZES = [
    "model_path=domains/guessing/checkpoint",
    "dataset_loader_params={count: 8, test_count: 3}",
    "dataset_loader_params.tasks={letter_counting: null}",
    "llm.parameters.max_tokens=6",
    "test_llm.parameters.max_tokens=6",
    "finetune.max_train_steps=2",
    "finetune.gradient_accumulation_passes=16",
    "max_lag=64",
]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="pip install 'pipelinerl[reasoning-gym]'"
)
def test_a_mixture_trains_and_every_family_has_its_figures(start: Start) -> None:
    run = start("+domain=reasoning_gym", *SIZES)
    assert run.wait() == 0, run.err
    assert run.summary()["completed_steps"] == 2 and not run.children()
    counts = run.counts()
    assert counts.eval_started == 2 * 9 == counts.eval_ends[Outcome.EVAL_DONE]
    check_run(run.output_dir)
    records = read_metrics(run.output_dir, "actor")
    for family in ("chain_sum", "products", "gcd"):
        for part in ("train", "test"):
            assert any(f"actor/{part}/{family}/success_mean" in record for record in records), (part, family)
    assert all(record.get("actor/no_error_mean", 1.0) == 1.0 for record in records)
