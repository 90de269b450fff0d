"""Ranks that torch's elastic agent starts in sessions of their own: neither they nor their children outlive
agent or launcher.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.processes import DEADLINE_S, alive, free_port, until

RANK = """
import os, subprocess, sys, time
from pathlib import Path
folder, rank = Path(sys.argv[1]), os.environ["RANK"]
(folder / f"came_{rank}").touch()
while (folder / "hold").exists(): time.sleep(0.02)
from pipelinerl.base.child import die_with_agent
die_with_agent()
from pipelinerl.base.guard import guard_rank
guard_rank()
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "600"], start_new_session=True)
if os.fork() == 0:
    time.sleep(600)
(folder / f"asked_{rank}").touch()
time.sleep(600)
"""
AGENT = """
import sys
from pathlib import Path
from pipelinerl.launcher.supervision import ChildSpec, Supervisor
argv = [sys.executable, "-m", *sys.argv[2:]]
with Supervisor([ChildSpec(name="finetune", argv=argv, log_dir=Path(sys.argv[1]) / "log")]) as supervisor:
    supervisor.start()
    supervisor.watch(tick_s=0.05)
"""


@pytest.mark.parametrize(
    "victim",
    ["launcher and guard", *(pytest.param(one, marks=pytest.mark.slow) for one in ("launcher", "agent"))],
)
@pytest.mark.parametrize("before_ranks_asked", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_ranks_of_an_elastic_agent_die_with_it_and_with_the_launcher(
    victim: str, before_ranks_asked: bool, tmp_path: Path
) -> None:
    rank, hold = tmp_path / "rank.py", tmp_path / "hold"
    rank.write_text(RANK)
    if before_ranks_asked:
        hold.touch()
    elastic = ["torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port())]
    launcher = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(tmp_path), *elastic, str(rank), str(tmp_path)]
    )
    word = "came" if before_ranks_asked else "asked"
    until(lambda: all((tmp_path / f"{word}_{one}").exists() for one in (0, 1)), "two ranks")
    below = psutil.Process(launcher.pid).children(recursive=True)
    ranks = [
        one
        for one in below
        if str(rank) in one.cmdline()
        and "torch.distributed.run" not in one.cmdline()
        and os.getsid(one.pid) == one.pid
    ]
    assert len(ranks) == 2, "sessions of their own"
    started = [child for one in ranks for child in one.children(recursive=True)]
    assert len(started) == (0 if before_ranks_asked else 8), "two programs, a fork and a guard of each"
    (agent,) = {one.ppid() for one in ranks}
    if victim == "launcher and guard":
        (guard,) = (one for one in psutil.Process(launcher.pid).children() if one.pid != agent)
        guard.kill()
    os.kill(agent if victim == "agent" else launcher.pid, signal.SIGKILL)
    until(lambda: not alive(agent), "the agent's end")
    hold.unlink(missing_ok=True)
    until(
        lambda: not any(alive(one.pid) for one in [*ranks, *started]), "the end of ranks and their children"
    )
    launcher.wait(DEADLINE_S)


def test_a_trainer_rank_whose_agent_has_gone_ends_before_it_does_anything(tmp_path: Path) -> None:
    orphan = {"TORCHELASTIC_RUN_ID": "none", "PIPELINERL_CHILD_PID": str(os.getpid() + 1)}
    command = [sys.executable, "-m", "pipelinerl.finetune"]
    ended = subprocess.run(command, env=os.environ | orphan, capture_output=True, timeout=DEADLINE_S)
    # With status 2 it would have come so far as to say that its arguments are missing.
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.parametrize("status", [0, 3])
def test_a_rank_that_ends_by_itself_has_its_own_exit_status_and_leaves_no_child(
    status: int, tmp_path: Path
) -> None:
    """The agent takes another status than 0 for a failure of the whole trainer."""
    rank, told = tmp_path / "rank.py", tmp_path / "told"
    start = 'print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, file=file)'
    rank.write_text(
        "import atexit, subprocess, sys, time\n"
        "from pipelinerl.base.guard import guard_rank\n"
        "guard_rank()\n"
        f"with open({str(told)!r}, 'w') as file: {start}\n"
        # An end that takes a while, as torch's does: what is torn down last waits.
        "class Slow:\n    def __del__(self, sleep=time.sleep): sleep(0.5)\n"
        "sys.slow = Slow()\n"
        f"sys.exit({status})\n"
    )
    agent = ["torch.distributed.run", "--nproc_per_node", "1", "--master_port", str(free_port())]
    ended = subprocess.run(
        [sys.executable, "-m", *agent, str(rank)], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert ended.returncode == (1 if status else 0), ended.stderr
    assert "SIGKILL" not in ended.stderr
    assert not status or f"exitcode  : {status} " in ended.stderr
    until(lambda: not alive(int(told.read_text())), "the end of what the rank started")
