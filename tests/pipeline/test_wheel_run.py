"""A wheel in a clean environment runs a pipeline from an empty folder."""

import json
import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.pipeline.conftest import SMALL
from tests.support.wheel_build import build_wheel

SHORT = (*SMALL, "finetune.max_train_steps=1", "dataset_loader_params.count=6")


def installed(folder: Path) -> Path:
    """The interpreter of a new environment that holds the wheel, and the dependencies of this one."""
    wheel = build_wheel(folder / "source", folder)
    venv.create(folder / "venv", with_pip=True)
    interpreter = folder / "venv" / "bin" / "python"
    pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True, timeout=200)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return interpreter


@pytest.mark.slow
def test_the_launcher_of_a_wheel_runs_a_domain_from_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    interpreter = installed(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        [str(interpreter), "-m", "pipelinerl.launch", "+domain=guessing", *SHORT],
        cwd=empty,
        env={**environment, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    (output_dir,) = (empty / "results" / "guessing").iterdir()
    (start,) = (output_dir / "actor").glob("start.sh")
    assert str(interpreter) in start.read_text()
    records = (output_dir / "finetune" / "metrics.jsonl").read_text().splitlines()
    assert records and json.loads(records[-1])
