"""A taskset of verifiers trains end to end, all processes real; rewards and metrics are figures by name."""

import importlib.util
import os

import pytest

from tests.pipeline.conftest import ROOT, Start, records_of

EXAMPLES = ROOT / "docs/examples/verifiers"


@pytest.mark.skipif(
    importlib.util.find_spec("verifiers") is None, reason="pip install 'pipelinerl[verifiers]'"
)
def test_a_taskset_trains_and_its_rewards_are_figures_by_name(start: Start) -> None:
    run = start(
        "+domain=verifiers",
        "hardware=cpu",
        "dataset_loader_params.env.taskset.id=halving",
        "dataset_loader_params={count: 8, test_count: 4}",
        "finetune.max_train_steps=1",
        "max_lag=64",
        env={"PYTHONPATH": f"{EXAMPLES}:{os.environ.get('PYTHONPATH', '')}", "HF_HUB_OFFLINE": "1"},
    )
    names = run.trained(steps=1, evaluated=4)
    wanted = {f"actor/test/halving/{name}_mean" for name in ("reward_halves", "metric_inside")}
    assert wanted | {"rl/role/agent/texts"} <= names, sorted(names)
    samples = [sample for group in records_of(run.output_dir, "actor") for sample in group]
    assert {sample["role"] for sample in samples} == {"agent"}
    assert all(sample["weight_versions"] for sample in samples)
    assert {sample["metadata"].get("exact_versions", True) for sample in samples} == {True}
