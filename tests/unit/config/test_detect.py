"""GPUs are counted without torch, and the user's own choice of devices is kept."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelinerl.config.detect import visible_devices
from pipelinerl.launcher.cards import Card, card_memory


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes the `nvidia-smi` that is on the PATH; there is none before."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.defpath}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def write(script: str) -> None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)

    return write


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (None, ["0", "1"]),
        ("1", ["1"]),
        ("3,5", ["3", "5"]),
        ("", []),
        ("-1", []),
        ("GPU-a, GPU-b", ["GPU-a", "GPU-b"]),
    ],
)
def test_all_devices_count_unless_the_user_chose(
    driver: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, chosen: str | None, expected: list[str]
) -> None:
    driver("echo 'GPU 0: X (UUID: a)'; echo 'GPU 1: X (UUID: b)'")
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert visible_devices() == expected


def test_there_is_no_gpu_without_the_driver_s_program_or_when_it_fails(
    driver: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert visible_devices() == []
    driver("echo 'No devices were found'; exit 6")
    assert visible_devices() == [] and card_memory("0") is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert visible_devices() == []


def test_the_card_is_asked_for_its_memory(driver: Callable[[str], None]) -> None:
    driver('echo "143771, 143000, NVIDIA H200"')
    assert card_memory("0") == Card(143771 * 2**20, 143000 * 2**20, "NVIDIA H200")
    assert Card(1, 1, "NVIDIA H200").speed[1] == 4.8e12
