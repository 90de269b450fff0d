"""Signals that stop a run, and what they do while the launcher is still importing: one line, no traceback.

Imported first by `pipelinerl.launch`, whose other imports take half a second. Nothing has been started by
then, so the process may end at once. `launcher.run.interruptible` takes over.
"""

import atexit
import os
import signal
import sys
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Of people and schedulers, of a terminal that closes, and of Slurm before a job's time is over."""


def stops() -> list[signal.Signals]:
    """Those of `STOPS` that are heeded: SIGINT and SIGTERM always, others unless they were ignored before.

    `nohup` has its command ignore SIGHUP, and means it; a shell has each command with `&` ignore SIGINT.
    """
    always = (signal.SIGINT, signal.SIGTERM)
    return [one for one in STOPS if one in always or signal.getsignal(one) is not signal.SIG_IGN]


def line(name: str) -> str:
    """What is said of a signal before there is anything to stop."""
    return f"launcher: stopped by {name} before anything was started\n"


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, line(signal.Signals(number).name).encode())
    os._exit(128 + number)


if "pipelinerl.launch" in sys.orig_argv:  # not where a test or another program imports the launcher
    for _number in stops():
        signal.signal(_number, _end)
        # Registered before all others, so it runs after them. The interpreter's own end resets every handler
        # that is not SIG_IGN, and a signal in those milliseconds would replace the exit status.
        atexit.register(signal.signal, _number, signal.SIG_IGN)
