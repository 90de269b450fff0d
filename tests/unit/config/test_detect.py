"""GPUs are counted without torch, and the user's own choice of devices is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipelinerl.config.detect import visible_devices


@pytest.fixture
def two_gpus(tmp_path: Path) -> dict[str, str]:
    """An environment whose `nvidia-smi -L` lists two devices."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: X (UUID: a)'\necho 'GPU 1: X (UUID: b)'\n")
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}{os.pathsep}{os.defpath}"}


def test_all_devices_count_without_a_choice(two_gpus: dict[str, str]) -> None:
    assert visible_devices(two_gpus) == ["0", "1"]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [("1", ["1"]), ("3,5", ["3", "5"]), ("", []), ("-1", []), ("GPU-a, GPU-b", ["GPU-a", "GPU-b"])],
)
def test_the_user_s_choice_is_kept(two_gpus: dict[str, str], chosen: str, expected: list[str]) -> None:
    assert visible_devices(two_gpus | {"CUDA_VISIBLE_DEVICES": chosen}) == expected


def test_there_is_no_gpu_without_the_driver_s_program(tmp_path: Path) -> None:
    assert visible_devices({"PATH": str(tmp_path)}) == []
    assert visible_devices({"PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0"}) == []


def test_a_failing_driver_means_no_gpu(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'no devices' >&2\nexit 9\n")
    program.chmod(0o755)
    assert visible_devices({"PATH": f"{tmp_path}{os.pathsep}{os.defpath}"}) == []
