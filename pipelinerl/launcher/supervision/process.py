"""One running child: its process group, its logs, and the threads that report its health and its end."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pipelinerl.base.child import wrapped
from pipelinerl.base.guard import kill_marked
from pipelinerl.base.heartbeat import BeatWatch
from pipelinerl.base.waits import StallDetector
from pipelinerl.launcher.supervision.liveness import watch_health, watch_heartbeat
from pipelinerl.launcher.supervision.spec import ChildSpec, Exited, Healthy, Tell, Unwell
from pipelinerl.launcher.supervision.words import last_words

LONGEST_LOOK_S = 3.0
"""Between two looks of the supervisor nothing counts beyond this."""


def start_process(spec: ChildSpec, guard: int) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own, killed when the calling thread's process ends; see `wrapped`."""
    spec.stdout.parent.mkdir(parents=True, exist_ok=True)
    with spec.stdout.open("ab") as out, spec.stderr.open("ab") as err:
        return subprocess.Popen(
            wrapped(spec.argv, guard),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **spec.env},
            start_new_session=True,
            pass_fds=(guard,),
        )


def _living() -> Iterator[tuple[int, str, int, int]]:
    """Pid, state, parent's pid and group of every process that is no zombie."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # Fields behind the command, which may itself hold blanks and brackets: state, ppid, pgrp.
            state, parent, group = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if state not in "ZX":
            yield int(entry.name), state, int(parent), int(group)


def group_members(pgid: int) -> list[int]:
    """Pids of the living processes of a group."""
    return [pid for pid, _, _, group in _living() if group == pgid]


def descendants(pid: int, processes: Iterable[tuple[int, str, int, int]] | None = None) -> list[int]:
    """Pids of the living processes below one, whatever their groups; `processes` as `_living` gives them."""
    children: dict[int, list[int]] = {}
    for one, _, parent, _ in _living() if processes is None else processes:
        children.setdefault(parent, []).append(one)
    found, look_below = list[int](), [pid]
    while look_below:
        below = children.get(look_below.pop(), [])
        found += below
        look_below += below
    return found


def stopped_processes(pids: Iterable[int]) -> dict[int, int]:
    """For each of these processes that was stopped (SIGSTOP), or one below it: the pid of the stopped one."""
    processes = list(_living())
    stopped = {pid for pid, state, _, _ in processes if state == "T"}  # `t` is one that a debugger holds
    if not stopped:
        return {}
    found = {pid: [one for one in (pid, *descendants(pid, processes)) if one in stopped] for pid in pids}
    return {pid: ones[0] for pid, ones in found.items() if ones}


def what_runs(pid: int) -> str:
    """The module or program of a process, for people."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
    except OSError:
        return "a process"
    return words[words.index("-m") + 1] if "-m" in words[:-1] else Path(words[0]).name


class RunningChild:
    """A started process, which ends with the calling thread. Its own threads call `tell`.

    `guard` is the descriptor of the input of the guard that ends its group when this process has gone.
    """

    def __init__(self, spec: ChildSpec, tell: Tell, guard: int) -> None:
        self.spec, self.tell = spec, tell
        err, out = (path.stat().st_size if path.exists() else 0 for path in (spec.stderr, spec.stdout))
        self._logs_start = err, out
        check = spec.heartbeat
        # From before the start, so that no beat of this start is taken for one of an earlier start.
        beats = check and BeatWatch(check.path, check.interval_s)
        self._process = start_process(spec, guard)
        self.pid = self._process.pid
        # Looked at by the supervisor; as every watcher, one that was stopped itself blames nobody.
        self.stopped = StallDetector(None, time.monotonic(), LONGEST_LOOK_S)
        self._gone = threading.Event()
        self._signalling = threading.Lock()
        self._start_thread(self._watch_exit)
        if spec.health is not None:
            self._start_thread(watch_health, spec.health, self._gone, self._healthy, self._silent)
        if check is not None:
            self._start_thread(watch_heartbeat, check, beats, self._gone, self._silent)

    def _start_thread(self, target: Callable[..., None], *args: object) -> None:
        threading.Thread(target=target, args=args, name=f"{self.spec.name}-watch", daemon=True).start()

    def _healthy(self) -> None:
        self.tell(Healthy())

    def _silent(self, cause: str) -> None:
        self.tell(Unwell(cause))

    def _watch_exit(self) -> None:
        # WNOWAIT leaves the zombie, so that its pid (the group's id) cannot be given to another process
        # before the rest of the group has been killed.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._gone.set()
        self.kill()
        with self._signalling:  # nobody signals the pid of somebody else
            code = self._process.wait()
        self.tell(Exited(code, last_words(self.spec, self._logs_start)))

    def terminate(self) -> None:
        """SIGTERM to the child itself, which stops its own workers; one that was stopped goes on for that."""
        for number in (signal.SIGTERM, signal.SIGCONT):
            self._signal(os.kill, self.pid, number)

    def kill(self) -> None:
        """SIGKILL to everything in the group and below, orphans too; nothing left is fine."""
        strays = descendants(self.pid)  # wandb's service, for one, has opened a session of its own
        self._signal(os.killpg, self.pid, signal.SIGKILL)
        for pid in strays:
            self._signal(os.kill, pid, signal.SIGKILL)
        kill_marked([self.pid])

    def _signal(self, send: Callable[[int, int], None], pid: int, number: int) -> None:
        # Not by Popen, which would wait for one that has just ended.
        with self._signalling, contextlib.suppress(ProcessLookupError, PermissionError):
            if self._process.returncode is None:
                send(pid, number)

    def wait_until_gone(self, deadline_s: float) -> bool:
        """Whether nothing of the group is alive any more within `deadline_s` seconds."""
        end = time.monotonic() + deadline_s
        while group_members(self.pid):
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)
        return True
