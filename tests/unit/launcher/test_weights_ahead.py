"""Engine and trainer are told the same about how a version is received."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipelinerl.config import load
from tests.unit.launcher.conftest import ON_GPUS

DryRun = Callable[..., tuple[int, str, str]]
GPUS = (*ON_GPUS, "hardware.devices=4")
TENSOR_PARALLEL = "vllm_config.vllm_kwargs.tensor-parallel-size=2"


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
    dry_run: DryRun, tmp_path: Path, overrides: tuple[str, ...], backend: str
) -> None:
    status, out, err = dry_run("+domain=guessing", *GPUS, "vllm_config.version=0.32.0", *overrides)
    assert (status, err) == (0, "")
    [command] = (tmp_path / "run").glob("actor_vllm_0/start.sh")
    assert f'{{"backend": "{backend}"}}' in command.read_text()
    cfg = load(tmp_path / "run")
    assert cfg.weights_ahead is backend.endswith("_ahead")
    assert ("received ahead" in out) is cfg.weights_ahead


def test_what_cannot_be_is_refused(dry_run: DryRun) -> None:
    status, _, err = dry_run("+domain=guessing", *GPUS, TENSOR_PARALLEL, "weights.ahead=true")
    assert status == 2 and "weights.ahead=true: has no effect here: engines receive ahead from files" in err
