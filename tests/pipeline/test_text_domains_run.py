"""The text domains with upstream's names train end to end from their bundled models."""

import pytest

from tests.pipeline.conftest import Start

pytestmark = pytest.mark.usefixtures("forked", "undrawn")
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
        pytest.param(
            "fn_calling",
            ["dataset_loader_params={count: 8, test_count: 1}"],
            5,
            "partial_score",
            marks=SLOW,
        ),
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
    names = run.trained(steps=1, evaluated=groups)
    assert {f"actor/{figure}_mean", f"actor/test_{figure}_mean"} <= names, sorted(names)
    assert any(run.output_dir.glob("environment_*")) is (name in ("ifeval", "logic"))
