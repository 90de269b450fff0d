"""Pools of workers end with the process that made them, however it ends."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pipelinerl.base.child import wrapped
from tests.support.processes import alive, until

ABLATION = """
import time
from domains.reputation_hacking.ppo import ablation
ablation.run_cell = time.sleep
if __name__ == "__main__":
    list(ablation._results([600, 600], 2))
"""
PACKS = """
import time
from pipelinerl.extras.bootstrap import packs
class Slow(packs.IterableDataset):
    def __iter__(self):
        time.sleep(600)
        yield 1
if __name__ == "__main__":
    next(iter(packs.loader(Slow(), 1)))
"""
IMPORTS = """
import pathlib, sys
from types import SimpleNamespace
from pipelinerl.launcher.checks import imports
imports.calls = lambda cfg: [("key", "hangs.when_imported", [], [])]
imports.check(None)
"""


@pytest.mark.parametrize(
    ("code", "workers"),
    [
        pytest.param(ABLATION, 2, id="ablation"),
        pytest.param(PACKS, 1, id="packs of the bootstrap recipe"),
        pytest.param(IMPORTS, 1, id="the user's functions imported"),
    ],
)
def test_workers_end_with_a_process_that_is_killed(code: str, workers: int, tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text("import time; time.sleep(600)")
    (tmp_path / "makes.py").write_text(code)
    made = subprocess.Popen(wrapped([sys.executable, "makes.py"]), cwd=tmp_path)
    process = psutil.Process(made.pid)

    def settled() -> bool:
        words = [" ".join(one.cmdline()) for one in process.children()]
        return sum("spawn_main" in line or "checks.imports" in line for line in words) >= workers

    until(settled, "the workers")
    left = process.children(recursive=True)
    made.kill()
    made.wait()
    until(lambda: not any(alive(one.pid) for one in left), "the workers' end")
