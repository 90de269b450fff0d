"""What is sharded and how versions are received is printed, and every role is told the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelinerl.config.finetune import Sharding
from tests.unit.launcher.conftest import ON_GPUS, Placed, Refused

TENSOR_PARALLEL = "vllm_config.vllm_kwargs.tensor-parallel-size=2"


@pytest.mark.parametrize(
    ("overrides", "sharding", "printed"),
    [
        ((), None, "nothing sharded"),
        (("use_fsdp=true",), Sharding(), "all sharded"),
        (
            ("use_deepspeed=true", "deepspeed_config=deepspeed_stage2_bf16", "fsdp.reduce_dtype=bf16"),
            Sharding(keep_gathered=True, reduce_bfloat16=True),
            "deepspeed_config=deepspeed_stage2_bf16",
        ),
        (("use_deepspeed=true", "deepspeed_config=deepspeed_stage1_bf16"), None, "nothing sharded"),
    ],
)
def test_sharding_as_configured(
    placed: Placed, overrides: tuple[str, ...], sharding: Sharding | None, printed: str
) -> None:
    cfg, out = placed(*ON_GPUS, "hardware.devices=8", *overrides)
    assert printed in out and cfg.sharding == sharding


@pytest.mark.parametrize(
    ("overrides", "backend"),
    [
        ((), "nccl_ahead"),
        (("weights.ahead=false",), "nccl"),
        ((TENSOR_PARALLEL,), "nccl"),
        ((TENSOR_PARALLEL, "weights.transport=file"), "file_ahead"),
    ],
)
def test_back_end_and_order_of_the_steps_agree(
    placed: Placed, tmp_path: Path, overrides: tuple[str, ...], backend: str
) -> None:
    cfg, out = placed(*ON_GPUS, "hardware.devices=4", *overrides)
    command = (tmp_path / "run/actor_vllm_0/start.sh").read_text()
    assert f'{{"backend": "{backend}"}}' in command
    assert cfg.weights_ahead is backend.endswith("_ahead") is ("received ahead" in out)


def test_receiving_ahead_where_it_cannot_be_is_refused(refused: Refused) -> None:
    said = refused(*ON_GPUS, TENSOR_PARALLEL, "weights.ahead=true")
    assert "weights.ahead=true: has no effect here: engines receive ahead from files" in said
