"""The text domains with upstream's names train end to end, all processes real, from their bundled models."""

import pytest

from pipelinerl.observe.history import read_metrics
from pipelinerl.run_state.accounting import Outcome
from tests.pipeline.conftest import Start
from tests.support.metric_tables import check_run

SIZES = ["finetune.max_train_steps=1", "finetune.gradient_accumulation_passes=16", "max_lag=64"]
SERVED = "{ifeval: {_target_: pipelinerl.domains.ifeval.IFEvalEnvironment}}"
PUZZLES = "{logic: {_target_: pipelinerl.domains.logic.LogicEnvironment}}"


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "more", "groups", "figure"),
    [
        pytest.param(
            "counting", ["dataset_loader_params={count: 8, test_count: 3}"], 3, "success", marks=SLOW
        ),
        pytest.param(
            "ifeval",
            ["dataset_loader_params={count: 8, test_count: 3}", f"+environments={SERVED}"],
            3,
            "success_loose",
            marks=SLOW,
        ),
        ("fn_calling", ["dataset_loader_params={count: 8, test_count: 1}"], 5, "partial_score"),
        (
            "logic",
            ["dataset_loader_params={count: 8, test_count: 1}", f"+environments={PUZZLES}"],
            2,
            "score",
        ),
    ],
)
def test_a_text_domain_trains_a_step(
    start: Start, name: str, more: list[str], groups: int, figure: str
) -> None:
    if name == "logic":
        pytest.importorskip("reasoning_gym", reason="pip install 'pipelinerl[reasoning-gym]'")
    run = start(f"+domain={name}", *SIZES, *more)
    assert run.wait() == 0, run.err
    assert run.summary()["completed_steps"] == 1 and not run.children()
    counts = run.counts()
    assert counts.eval_started == 2 * groups == counts.eval_ends[Outcome.EVAL_DONE]
    check_run(run.output_dir)
    records = read_metrics(run.output_dir, "actor")
    assert any(f"actor/{figure}_mean" in record for record in records)
    assert any(f"actor/test_{figure}_mean" in record for record in records)
    assert any(run.output_dir.glob("environment_*")) is (name in ("ifeval", "logic"))
