"""The guard: kills the process groups of a supervisor that has gone, also workers that did not ask for it.

It reads `+PGID` and `-PGID` lines from stdin. End of input means that the supervisor is no more (the kernel
closes the pipe even after kill -9): every group still listed gets SIGKILL. Standard library only, like
child.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


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
    return 0


if __name__ == "__main__":
    sys.exit(main())
