"""Two GPUs do what one does: NCCL, FSDP2, bfloat16, compiled layers. Skipped without two."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.finetune.test_gradient_sums import assert_sums, events_of, run
from tests.unit.finetune.test_ranks import (
    DEADLINE_S,
    SHARDED,
    SHARDED_GRADIENTS,
    one_rank,
    prepare,
    results,
    start_ranks,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    pytest.mark.timeout(2 * DEADLINE_S),
]


@pytest.mark.parametrize(
    "fields",
    [
        SHARDED | {"gradient_checkpointing": True, "ends": [2, 4]},
        {},
        SHARDED_GRADIENTS | {"compile": True},
    ],
)
def test_two_gpus_equal_one(tmp_path: Path, fields: dict[str, Any]) -> None:
    one, two = prepare(tmp_path / "one", 1), prepare(tmp_path / "two", 2)
    common: dict[str, Any] = {"hardware": {"kind": "gpu"}, "load_as_bf16": True}
    one_rank(one, **common)
    for code, said in start_ranks(two, 2, **common, **fields):
        assert code == 0, said[-2000:]
    (expected, summary), (found, other) = results(one), results(two)
    assert other["grad_norm"] == pytest.approx(summary["grad_norm"], rel=0.1)
    for name, tensor in expected.items():
        assert float((found[name] - tensor).norm()) < 0.05 * float(tensor.norm()) + 0.05, name


def test_gradients_of_two_gpus_are_summed_beside_the_backward_pass(tmp_path: Path) -> None:
    cases = ["uneven", "idle, bfloat16", "recomputed"]
    for code, said in run(tmp_path, 2, cases, "gpu"):
        assert code == 0, said[-2000:]
    for case in cases:
        assert_sums(tmp_path, case, 2, "gpu", 5e-3)
    for events in events_of(tmp_path, "uneven", 2):
        assert all("gradient" in step[step.index("sum 512") :] for step in events[1:])
