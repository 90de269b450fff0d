"""Workers, and what else a process starts beside a supervisor, end with it, however it ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pipelinerl.base.child import wrapped
from pipelinerl.base.guard import ask
from tests.support.processes import alive, until

ROOT = Path(__file__).resolve().parents[3]
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
SERVED = """
import time
from benchmarks._processes import Logged
Logged(["sleep", "600"], None, None)
time.sleep(600)
"""
SERVES = """
import time
from benchmarks._processes import function
def serve(told):
    time.sleep(600)
if __name__ == "__main__":
    with function(serve):
        time.sleep(600)
"""
LEAVES_SOME = """
import json, os, subprocess, sys, time
left = [subprocess.Popen(["sleep", "600"], start_new_session=session) for session in (False, True)]
pids = [os.getpid(), *(one.pid for one in left)]
print(json.dumps([sys.stdin.read(), *pids]), flush=True)
with open(sys.argv[1] + "~", "w") as file: json.dump(pids, file)
os.rename(sys.argv[1] + "~", sys.argv[1])
time.sleep(float(sys.argv[2]))
"""
ASKS = """
import sys
from pipelinerl.base.guard import ask
ask([sys.executable, "-c", *sys.argv[1:]], "", 600)
"""


@pytest.mark.parametrize(
    ("code", "workers"),
    [
        pytest.param(ABLATION, 2, id="ablation"),
        pytest.param(PACKS, 1, id="packs of the bootstrap recipe"),
        pytest.param(IMPORTS, 1, id="the user's functions imported"),
        pytest.param(SERVED, 1, id="servers and runs of a benchmark"),
        pytest.param(SERVES, 1, id="a function of a benchmark"),
    ],
)
def test_workers_end_with_a_process_that_is_killed(code: str, workers: int, tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text("import time; time.sleep(600)")
    (tmp_path / "makes.py").write_text(code)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    made = subprocess.Popen(wrapped([sys.executable, "makes.py"]), cwd=tmp_path, env=env)
    process = psutil.Process(made.pid)

    def settled() -> bool:
        words = [" ".join(one.cmdline()) for one in process.children()]
        begun = ("spawn_main", "checks.imports", "sleep 600")
        return sum(any(word in line for word in begun) for line in words) >= workers

    until(settled, "the workers")
    left = process.children(recursive=True)
    made.kill()
    made.wait()
    until(lambda: not any(alive(one.pid) for one in left), "the workers' end")


def test_what_is_asked_leaves_nothing_running_that_holds_up_the_answer(tmp_path: Path) -> None:
    """Such as processes of a loader's own, which hold its output open, in its session or another one."""
    found = ask([sys.executable, "-c", LEAVES_SOME, str(tmp_path / "pids"), "0"], "häus", 100)
    given, *pids = json.loads(found.stdout)
    assert (given, found.returncode, len(pids)) == ("häus", 0, 3)
    assert not any(map(alive, pids))


def test_what_is_asked_for_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    with pytest.raises(subprocess.TimeoutExpired):
        ask([sys.executable, "-c", LEAVES_SOME, str(told), "600"], "", 5)
    assert not any(map(alive, json.loads(told.read_text())))


def test_what_is_asked_ends_with_who_asks_when_that_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    asks = subprocess.Popen(wrapped([sys.executable, "-c", ASKS, LEAVES_SOME, str(told), "600"]))
    until(told.exists, "what is asked has started others")
    pids = json.loads(told.read_text())
    assert all(map(alive, pids)) and os.getsid(pids[2]) != os.getsid(pids[0])
    asks.kill()
    asks.wait()
    until(lambda: not any(map(alive, pids)), "the end of all of them")
