"""SIGINT and SIGTERM while the launcher is still importing: one line instead of a traceback.

Imported first by `pipelinerl.launch`, whose other imports take half a second. Nothing has been started by
then, so the process may end at once. `launcher.run.interruptible` takes over.
"""

import atexit
import os
import signal
import sys
from types import FrameType


def line(name: str) -> str:
    """What is said of a signal before there is anything to stop."""
    return f"launcher: stopped by {name} before anything was started\n"


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, line(signal.Signals(number).name).encode())
    os._exit(128 + number)


if "pipelinerl.launch" in sys.orig_argv:  # not where a test or another program imports the launcher
    for _number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(_number, _end)
        # Registered before all others, so it runs after them. The interpreter's own end resets every handler
        # that is not SIG_IGN, and a signal in those milliseconds would replace the exit status.
        atexit.register(signal.signal, _number, signal.SIG_IGN)
