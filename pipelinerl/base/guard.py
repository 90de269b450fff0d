"""The guard: cleans up after a process that has gone, however it ended.

A supervisor has one for the process groups of its children, also workers that did not ask to die with it; a
trainer has one for its weights in shared memory, because the supervisor may be killed with its own guard. It
reads `+PGID` and `-PGID` lines from stdin. End of input means that its owner is no more (the kernel closes
the pipe even after kill -9): every group still listed gets SIGKILL, with what its leader started in other
groups and sessions, and the folders named as arguments, such as weights in shared memory, are removed.
Standard library only, like child.py. Whoever starts programs that no supervisor knows has a `GroupGuard`: a
rank of torch's agent, a worker with recorded programs, a launcher that `ask`s before its supervisor is there.
"""

import contextlib
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # their imports would double the time of a start
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import IO

_GONE_DEADLINE_S = 10.0
_KILLED_PASSES, _BETWEEN_PASSES_S = 50, 0.02
_MARK, _RANK_MARK = "PIPELINERL_CHILD_PID", "PIPELINERL_RANK_PID"
"""`CHILD_VARIABLE` of child.py, which this file cannot import where it runs alone, and what a rank of torch's
agent adds for its own children."""
_LOOK_S = 1.0
"""Between two looks whether the owner lives, while it says nothing."""


def start(folders: "Iterable[Path]") -> "subprocess.Popen[bytes]":
    """A guard of this process: it acts when its stdin is closed, which the end of this process does too.

    It has a process group of its own, in this session: what is meant for this group does not reach it, and
    one that was stopped goes on when this process ends, because the kernel continues a group orphaned so.
    It is without the mark of a launcher's child, or another guard would kill it before it has acted.
    """
    import subprocess

    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), *map(str, folders)],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name not in (_MARK, _RANK_MARK)},
        process_group=0,
    )


def kill_marked(children: "Iterable[int]") -> None:
    """SIGKILL to what was started below these processes that child.py turned into a command, or these ranks.

    Such a process is known by its environment, which it inherited, whatever its session is and even if its
    parent has ended. One that was given another environment is not found, nor one of another user.
    """
    marks = {f"{mark}={pid}".encode() for pid in children for mark in (_MARK, _RANK_MARK)}
    for _ in range(_KILLED_PASSES if marks else 0):
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        if not (found := [pid for pid in pids if marks & _environment(pid)]):
            return
        for pid in found:  # which may start others until they are dead, hence another pass
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_BETWEEN_PASSES_S)


def _environment(pid: int) -> set[bytes]:
    """Variables with which the program of a process was started; a zombie has none."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return set(file.read().split(b"\0"))
    return set()


class GroupGuard:
    """Process groups that do not outlive this process; its guard is started with the first one."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def fileno(self) -> int:
        """The guard's input, for `wrapped` of child.py: what that starts tells its group by itself."""
        return self._input().fileno()

    def add(self, pgid: int) -> None:
        """Another guard has to know it too, should this one be killed."""
        self._groups.add(pgid)
        self._tell("+", pgid)

    def discard(self, pgid: int) -> None:
        """The group has ended; its number may be given to another one."""
        self._groups.discard(pgid)
        self._tell("-", pgid)

    def close(self) -> None:
        """Every group has ended: its guard is not needed any more."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _tell(self, sign: str, pgid: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # killed this moment; the next call starts another
            self._input().write(f"{sign}{pgid}\n".encode())

    def _input(self) -> "IO[bytes]":
        if self._process is None or self._process.poll() is not None:  # none yet, or somebody killed it
            self._process = start(())
            for group in self._groups:
                self._tell("+", group)
        assert self._process.stdin is not None
        return self._process.stdin


def ask(argv: "Sequence[str]", given: str, deadline_s: float) -> "subprocess.CompletedProcess[str]":
    """What a command makes of its input `given`; whatever it started is gone then, or when this process is.

    Its streams are files in memory, because a pipe would wait for what the command left running. Raises
    subprocess.TimeoutExpired after `deadline_s`, when the command was killed too.
    """
    import subprocess

    from pipelinerl.base.child import wrapped

    guarded = GroupGuard()
    with contextlib.ExitStack() as stack:
        stack.callback(guarded.close)
        names = ("given", "said", "errors")
        files = [
            stack.enter_context(os.fdopen(os.memfd_create(name), "w+", errors="replace")) for name in names
        ]
        files[0].write(given)
        files[0].seek(0)
        told = guarded.fileno()
        child = subprocess.Popen(
            wrapped(argv, told),
            stdin=files[0],
            stdout=files[1],
            stderr=files[2],
            start_new_session=True,
            pass_fds=(told,),
        )
        try:
            child.wait(deadline_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            kill_marked([child.pid])
        texts = []
        for file in files[1:]:
            file.seek(0)
            texts.append(file.read())
        return subprocess.CompletedProcess(child.args, child.returncode, *texts)


def guard_rank() -> None:
    """For a rank that torch's elastic agent put into a session of its own: what it starts ends with it.

    The launcher's guard kills the agent's group and knows no other. Nothing for any other process.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ and os.getpgrp() == os.getpid():
        _OF_RANK.add(os.getpid())
        os.environ[_RANK_MARK] = str(os.getpid())


_OF_RANK = GroupGuard()


def _wait_until_gone(groups: set[int]) -> None:
    """Until no process of the groups is left to write a file; a zombie that nobody reaps ends the wait."""
    expires = time.monotonic() + _GONE_DEADLINE_S
    while groups and time.monotonic() < expires:
        for group in list(groups):
            try:
                os.killpg(group, 0)
            except (ProcessLookupError, PermissionError):
                groups.discard(group)
        time.sleep(0.02)


def remove(folder: str, ended: float) -> None:
    """The folder with the files it had when the run `ended`; a run started since then keeps its own."""
    with contextlib.suppress(OSError), os.scandir(folder) as files:  # it never was, or another guard was here
        for file in files:
            with contextlib.suppress(OSError):  # a folder of somebody else; every other file still goes
                if file.stat(follow_symlinks=False).st_mtime <= ended:
                    os.unlink(file)
    with contextlib.suppress(OSError):  # someone else's files are in it, or it never was
        os.rmdir(folder)


def _told(owner: int) -> "Iterator[bytes]":
    """Lines of stdin, until its end or that of the owner, whose forks hold the pipe as well."""
    rest = b""
    while True:
        if select.select([0], [], [], _LOOK_S)[0]:
            if not (more := os.read(0, 1 << 16)):
                return
            *lines, rest = (rest + more).split(b"\n")
            yield from lines
        elif os.getppid() != owner:
            return


def main() -> int:
    # The terminal's signals are meant for the launcher, which closes our input when it ends.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    owner, groups = int(sys.argv[1]), set[int]()
    for line in _told(owner):
        number = int(line[1:])
        if line[:1] == b"+":
            groups.add(number)
        else:
            groups.discard(number)
    while owner in groups and os.getppid() == owner:  # a rank that is ending: its exit status is its own
        time.sleep(0.02)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    kill_marked(groups)
    ended = time.time()
    _wait_until_gone(groups)
    for folder in sys.argv[2:]:
        remove(folder, ended)
    return 0


if __name__ == "__main__":
    sys.exit(main())
