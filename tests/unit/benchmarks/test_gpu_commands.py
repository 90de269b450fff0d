"""Benchmarks of cards where there is none: one line, and committed results stay as they were."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import served_architectures
from benchmarks._figures import RESULTS
from benchmarks.gpu import cards, engine, groups, served

SCRIPTS = ("adapters", "engine", "several_hosts", "sharded", "shared", "sizes", "trainer", "trl")


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_without_a_card_says_so_in_one_line(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", [script])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.gpu.{script}").main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith(f"benchmarks.gpu.{script} needs a CUDA device") and said.count("\n") == 1


def test_groups_without_vllm_say_so_before_they_start_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(served, "installed_version", lambda python: None)
    monkeypatch.setattr(
        "sys.argv", ["groups", "--folder", str(tmp_path), "--out", str(tmp_path / "one.json")]
    )
    with pytest.raises(SystemExit, match=r"has no vLLM$"):
        groups.main()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("python", "said"), [("/no/python", "not a Python interpreter"), (None, "no vLLM")])
def test_without_vllm_no_architecture_is_recorded(
    python: str | None, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(served_architectures, "measured", lambda *_: pytest.fail("it measures"))
    if python is None:
        monkeypatch.setattr(served_architectures, "installed_version", lambda _: None)
    monkeypatch.setattr("sys.argv", ["served", "--vllm", python or sys.executable])
    assert served_architectures.main() == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_rehearsal_leaves_the_committed_results_alone(tmp_path: Path) -> None:
    assert cards.kept_at("gpu_shared", None, rehearsal=False) == RESULTS / "gpu_shared.json"
    assert RESULTS not in cards.kept_at("gpu_shared", None, rehearsal=True).resolve().parents
    assert cards.kept_at("gpu_shared", tmp_path / "x.json", rehearsal=True) == tmp_path / "x.json"
    assert engine.parsed(["--cpu"]).out == cards.kept_at("gpu_engine", None, rehearsal=True)
    assert engine.parsed([]).out == RESULTS / "gpu_engine.json"
