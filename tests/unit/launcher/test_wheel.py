"""The wheel holds everything that a run needs, and its launcher works from an empty folder."""

import os
import shutil
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.sandbox_needed import refusal
from tests.support.wheel_build import build_wheel, data_files
from tests.unit.launcher.conftest import ROOT, python

EXTRAS = [
    "vllm",
    "redis",
    "pyarrow",
    "gymnasium",
    "stable_baselines3",
    "math_verify",
    "peft",
    "wandb_workspaces",
    "gguf",
    "reasoning_gym",
    "textarena",
    "verifiers",
]
DRY_RUNS = """
import gc, importlib, os, sys
from importlib.machinery import PathFinder
from pathlib import Path

class BaseInstall(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in EXTRAS else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = BaseInstall
import pipelinerl
from pipelinerl.config import load
from pipelinerl.launch import main

gc.freeze()  # of what was imported nothing goes
gc.set_threshold(10_000, 20, 20)
site = Path(pipelinerl.__file__).parents[1]
assert site == Path(sys.argv[1]), site
print("validate", main(["+domain=guessing", "validate=true"]), file=sys.stderr)
from pipelinerl.launcher import start
from tests.support.compositions import quick
from tests.support.rehearsals import looked_here

quick(setattr)
start.look = looked_here  # not in a process each, where the extras would be there
os.environ["DRY_RUN"] = "1"
redis = ["raro.replay.backend=redis", "raro.replay.path=redis://127.0.0.1:1"]
print("redis", main(["+domain=raro_tiny", "output_dir=run/redis", *redis]), file=sys.stderr)
for path in sorted((site / "pipelinerl/conf/domain").glob("*.yaml")):
    status = main([f"+domain={path.stem}", f"output_dir=run/{path.stem}"])
    if status == 0:
        cfg = load(f"run/{path.stem}")
        for function in (cfg.dataset_loader, cfg.actor.rollout_policy):
            module, _, name = function.rpartition(".")
            assert callable(getattr(importlib.import_module(module), name)), function
    print(path.stem, status, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel"))


def test_every_tracked_file_of_the_packages_is_in_the_wheel_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {str(path) if path.parts[0] != "conf" else f"pipelinerl/{path}" for path in data_files()}
    assert sorted(wanted - held) == []
    assert sorted(held - wanted) == []


def test_every_bundled_domain_starts_from_an_empty_folder_without_extras(wheel: Path, tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    with ZipFile(wheel) as archive:
        archive.extractall(site)
    quickly = tmp_path / "tests/support"
    quickly.mkdir(parents=True)
    for name in ("compositions.py", "quick_trees.py", "rehearsals.py"):
        shutil.copy(ROOT / "tests/support" / name, quickly)
    path = f"{site}{os.pathsep}{tmp_path}"  # the repository is in no path
    answer = python(
        "-c", f"EXTRAS = {EXTRAS}\n{DRY_RUNS}", str(site), cwd=empty, PYTHONPATH=path, COLUMNS="200"
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    lines = answer.stderr.splitlines()
    assert lines[0] == "validate 0"
    assert "pip install 'pipelinerl[redis]'" in lines[1] and lines[2] == "redis 2"
    bundled = {path.stem for path in (ROOT / "conf/domain").glob("*.yaml")}
    ended = {line.split()[0]: line.split()[1] for line in lines if line.split()[0] in bundled}
    assert ended.keys() == bundled
    for domain, status in ended.items():
        if status != "0":
            before = lines[lines.index(f"{domain} {status}") - 1]
            reasons = ["pip install 'pipelinerl[", *filter(None, [refusal()])]
            assert status == "2" and any(reason in before for reason in reasons), (domain, before)
            continue
        scripts = "".join(path.read_text() for path in (empty / "run" / domain).rglob("start.sh"))
        assert str(ROOT) not in scripts.replace(str(Path(sys.prefix)), ""), domain
    assert os.listdir(empty) == ["run"]
