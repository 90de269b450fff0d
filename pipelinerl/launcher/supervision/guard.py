"""The guard: kills the process groups of a supervisor that has gone, also workers that did not ask for it.

It reads `+PGID` and `-PGID` lines from stdin. End of input means that the supervisor is no more (the kernel
closes the pipe even after kill -9): every group still listed gets SIGKILL, and the folders named as
arguments, such as weights in shared memory, are removed. Standard library only, like child.py.
"""

import contextlib
import os
import signal
import sys
import time

_GONE_DEADLINE_S = 10.0


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
