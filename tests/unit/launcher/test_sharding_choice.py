"""What is sharded is printed, however it was asked for, and the trainer is told the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipelinerl.config import load
from pipelinerl.config.finetune import Checkpointing, Sharding
from tests.unit.launcher.conftest import ON_GPUS

DryRun = Callable[..., tuple[int, str, str]]
GPUS = (*ON_GPUS, "hardware.devices=8")


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
    dry_run: DryRun,
    tmp_path: Path,
    overrides: tuple[str, ...],
    sharding: Sharding | None,
    printed: str,
) -> None:
    status, out, err = dry_run("+domain=guessing", *GPUS, "vllm_config.version=0.32.0", *overrides)
    assert (status, err) == (0, "")
    assert printed in out
    assert load(tmp_path / "run").sharding == sharding


@pytest.mark.parametrize(("given", "expected"), [("true", True), ("selective", "selective"), ("3", 3)])
def test_checkpointing_adapters_and_compilation_reach_the_trainer(
    dry_run: DryRun, tmp_path: Path, given: str, expected: Checkpointing
) -> None:
    chosen = (
        f"finetune.gradient_checkpointing={given}",
        "finetune.compile=true",
        "finetune.lora.enabled=true",
    )
    status, _, err = dry_run("+domain=guessing", *GPUS, "vllm_config.version=0.32.0", *chosen)
    assert (status, err) == (0, "")
    finetune = load(tmp_path / "run").finetune
    assert finetune.gradient_checkpointing == expected
    assert finetune.gradient_checkpointing is not True or given == "true"
    assert finetune.compile and finetune.lora.enabled and finetune.lora.r == 16
