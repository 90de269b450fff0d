"""Programs that know nothing of training are trained through the recording endpoint, all processes real."""

import pytest

from pipelinerl.run_state.accounting import Outcome
from tests.pipeline.conftest import ROOT, Start, records_of
from tests.support.recorded_programs import PYTHON, need

EXAMPLE = ROOT / "docs/examples/recorded"
PROGRAMS = {
    "player": None,
    "with_anthropic": "anthropic",
    "with_inspect_ai": "inspect_ai",
    "with_mini_swe_agent": "minisweagent",
    "with_openai_agents": "agents",
    "with_pydantic_ai": "pydantic_ai",
    "with_smolagents": "smolagents",
}
"""With the package that each needs."""


@pytest.mark.slow
@pytest.mark.parametrize(("program", "package"), PROGRAMS.items())
def test_a_program_trains(start: Start, program: str, package: str | None) -> None:
    if package is not None:
        need(package)
    run = start(
        "--config-dir",
        str(EXAMPLE / "conf"),
        "+domain=recorded_guessing",
        "hardware=cpu",
        "model_path=domains/guessing/checkpoint",
        "dataset_loader_params.count=4",
        "finetune.gradient_accumulation_passes=16",
        "finetune.max_train_steps=2",
        "max_lag=64",
        f"recorded.program={program}",
        *([] if package is None else [f"recorded.python={PYTHON}", "recorded.deadline_s=300"]),
        env={"PYTHONPATH": str(EXAMPLE)},
    )
    assert run.wait() == 0, run.err
    assert run.summary()["completed_steps"] == 2 and not run.children()
    assert run.counts().eval_ends[Outcome.EVAL_DONE] == 8
    samples = [sample for group in records_of(run.output_dir, "actor") for sample in group]
    assert samples and all(sample["weight_versions"] for sample in samples)
    assert {sample["metadata"].get("exact_versions", True) for sample in samples} == {True}
    assert any(0 < sample["reward"] < 1 for sample in samples)
