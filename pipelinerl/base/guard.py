"""The guard: cleans up after a process that has gone, however it ended.

A supervisor has one for the process groups of its children, also workers that did not ask to die with it; a
trainer has one for its weights in shared memory, because the supervisor may be killed with its own guard. It
reads `+PGID` and `-PGID` lines from stdin. End of input means that its owner is no more (the kernel closes
the pipe even after kill -9): every group still listed gets SIGKILL, and the folders named as arguments, such
as weights in shared memory, are removed. Standard library only, like child.py.
"""

import contextlib
import os
import signal
import sys
import time

TYPE_CHECKING = False  # their imports would double the time of a start
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable
    from pathlib import Path

_GONE_DEADLINE_S = 10.0


def start(folders: "Iterable[Path]") -> "subprocess.Popen[bytes]":
    """A guard of this process: it acts when its stdin is closed, which the end of this process does too.

    It has a process group of its own, in this session: what is meant for this group does not reach it, and
    one that was stopped goes on when this process ends, because the kernel continues a group orphaned so.
    """
    import subprocess

    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, *map(str, folders)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )


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
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as files:
        for file in files:
            if file.stat(follow_symlinks=False).st_mtime <= ended:
                os.unlink(file)
    with contextlib.suppress(OSError):  # someone else's files are in it, or it never was
        os.rmdir(folder)


def main() -> int:
    # The terminal's signals are meant for the launcher, which closes our input when it ends.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        number = int(line[1:])
        if line[:1] == b"+":
            groups.add(number)
        else:
            groups.discard(number)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    ended = time.time()
    _wait_until_gone(groups)
    for folder in sys.argv[1:]:
        remove(folder, ended)
    return 0


if __name__ == "__main__":
    sys.exit(main())
