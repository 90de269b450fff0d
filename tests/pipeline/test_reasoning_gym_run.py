"""A mixture of generated families trains end to end, all processes real, with figures for each family."""

import importlib.util

import pytest

from pipelinerl.observe.history import read_metrics
from tests.pipeline.conftest import Start

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
    names = run.trained(steps=2, evaluated=9)
    families = [
        f"{part}/{family}" for part in ("train", "test") for family in ("chain_sum", "products", "gcd")
    ]
    assert {f"actor/{family}/success_mean" for family in families} <= names, sorted(names)
    records = read_metrics(run.output_dir, "actor")
    assert all(record.get("actor/no_error_mean", 1.0) == 1.0 for record in records)
