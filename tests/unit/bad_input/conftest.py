"""The launcher in this process, with hydra's part of a composition computed once per choice of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipelinerl.config import compose as compose_module
from pipelinerl.launch import main
from tests.unit.config.conftest import remembered


@pytest.fixture
def validate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """`python -m pipelinerl.launch ... validate=true` on a machine without a GPU: status and stderr."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(compose_module, "_compose", remembered)

    def run(*arguments: str) -> tuple[int, str]:
        status = main([f"output_dir={tmp_path / 'run'}", "validate=true", *arguments])
        return status, capsys.readouterr().err

    return run
