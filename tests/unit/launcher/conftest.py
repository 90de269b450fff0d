"""Launching in this process and in others, with a folder that looks like a model."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelinerl.config import Config, load
from pipelinerl.launch import main
from tests.support.one_line import check_one_line

DryRun = Callable[..., tuple[int, str, str]]
Placed = Callable[..., tuple[Config, str]]
Refused = Callable[..., str]
Validate = Callable[..., tuple[int, str]]
ROOT = Path(__file__).resolve().parents[3]
QWEN_1_7B = {
    "num_hidden_layers": 28,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
}
ON_GPUS = (
    *("hardware=gpu", "llm.parameters.max_tokens=64", "test_llm.parameters.max_tokens=64"),
    "vllm_config.version=0.32.0",
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"model_type": "olmo2", "max_position_embeddings": 16384, "vocab_size": 100})
    )
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")  # whole, and empty
    return folder


@pytest.fixture
def dry_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> DryRun:
    """Runs the launcher with DRY_RUN=1; returns its status, output and errors."""
    monkeypatch.setenv("DRY_RUN", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main([f"output_dir={tmp_path / 'run'}", f"model_path={model}", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def refused(dry_run: DryRun) -> Callable[..., str]:
    """The one line with which a dry run of the guessing domain is refused."""

    def run(*arguments: str) -> str:
        status, _, err = dry_run("+domain=guessing", *arguments)
        assert status == 2
        check_one_line(err, "launcher: ", str(arguments))
        return err

    return run


@pytest.fixture
def placed(dry_run: DryRun, tmp_path: Path) -> Placed:
    """The tree that a dry run of the guessing domain wrote to `run/`, and what it printed."""

    def run(*arguments: str) -> tuple[Config, str]:
        status, out, err = dry_run("+domain=guessing", *arguments)
        assert (status, err) == (0, "")
        return load(tmp_path / "run"), " ".join(out.split())

    return run


def python(
    *arguments: str, cwd: Path = ROOT, timeout_s: float = 400.0, **env: str
) -> subprocess.CompletedProcess[str]:
    """A Python process that can import the project from any directory."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=timeout_s,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **env},
    )


@pytest.fixture
def validate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Validate:
    """`python -m pipelinerl.launch ... validate=true` on a machine without a GPU: status and stderr."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*arguments: str) -> tuple[int, str]:
        status = main([f"output_dir={tmp_path / 'run'}", "validate=true", *arguments])
        return status, capsys.readouterr().err

    return run
