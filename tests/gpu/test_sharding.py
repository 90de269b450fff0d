"""Two GPUs do what one does: NCCL, FSDP2, bfloat16, compiled layers. Skipped without two."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.ranks import LoneRank
from tests.support.builders import trainer_config
from tests.support.policy import tiny_model
from tests.unit.finetune.test_gradient_sums import assert_sums, events_of, run
from tests.unit.finetune.test_ranks import (
    DEADLINE_S,
    ON_HOST,
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
        ON_HOST | {"ends": [2, 4]},
        SHARDED | {"optim": "adamw_8bit", "ends": [2, 4]},
        ON_HOST | {"optim": "adamw_8bit"},
        SHARDED | {"whole_on_host": True},
        SHARDED | {"seq_parallel": 2, "ends": [2, 4]},
        {"seq_parallel": 2, "compile": True},
        SHARDED | {"seq_parallel": 2, "gradient_checkpointing": "offload"},
    ],
)
def test_two_gpus_equal_one(tmp_path: Path, fields: dict[str, Any]) -> None:
    hidden = 16
    common: dict[str, Any] = {"hardware": {"kind": "gpu"}, "load_as_bf16": True}
    alone = dict(common)
    if "optim" in fields:
        pytest.importorskip("torchao")
        hidden, alone["optim"] = 64, fields["optim"]  # moments of small matrices are float32
    partitions = 2 // fields.get("seq_parallel", 1)
    one, two = prepare(tmp_path / "one", 1, hidden), prepare(tmp_path / "two", partitions, hidden)
    one_rank(one, **alone)
    for code, said in start_ranks(two, 2, **common, **fields):
        assert code == 0, said[-2000:]
    (expected, summary), (found, other) = results(one), results(two)
    assert other["grad_norm"] == pytest.approx(summary["grad_norm"], rel=0.1)
    for name, tensor in expected.items():
        assert float((found[name] - tensor).norm()) < 0.05 * float(tensor.norm()) + 0.05, name


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_8bit"])
def test_one_gpu_with_states_in_host_memory_equals_one_without(tmp_path: Path, optim: str) -> None:
    """Also after a resume; the policy computes on the card and its states lie on the host."""
    if optim == "adamw_8bit":
        pytest.importorskip("torchao")
    plain, offloaded = (prepare(tmp_path / name, 1, 64) for name in ("plain", "offloaded"))
    common: dict[str, Any] = {"hardware": {"kind": "gpu"}, "load_as_bf16": True, "optim": optim}
    one_rank(plain, **common)
    for code, said in start_ranks(offloaded, 1, **common, **ON_HOST, ends=[2, 4]):
        assert code == 0, said[-2000:]
    (expected, summary), (found, other) = results(plain), results(offloaded)
    assert other["grad_norm"] == pytest.approx(summary["grad_norm"], rel=0.1)
    for name, tensor in expected.items():
        assert float((found[name] - tensor).norm()) < 0.05 * float(tensor.norm()) + 0.05, name
    lone = LoneRank(cpu=False)
    try:
        learner = Trainer(trainer_config(offloaded, tiny_model(), **common, **ON_HOST), lone).learner
        assert learner.device == torch.device("cuda", 0)
        assert {p.device.type for p in learner.policy.parameters()} == {"cpu"}
        states = learner.optimiser.state.values()
        assert {value.device.type for state in states for value in state.values()} == {"cpu"}
    finally:
        lone.close()


def test_gradients_of_two_gpus_are_summed_beside_the_backward_pass(tmp_path: Path) -> None:
    cases = ["uneven", "idle, bfloat16", "recomputed"]
    for code, said in run(tmp_path, 2, cases, "gpu"):
        assert code == 0, said[-2000:]
    for case in cases:
        assert_sums(tmp_path, case, 2, "gpu", 5e-3)
    for events in events_of(tmp_path, "uneven", 2):
        assert all("gradient" in step[step.index("sum 512") :] for step in events[1:])
