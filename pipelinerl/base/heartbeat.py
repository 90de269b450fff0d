"""A sign of life once a second: the modification time of `<output_dir>/<role>/heartbeat`.

A thread renews it, so a role that computes, or waits within its deadlines, is alive, and one that is stopped
(SIGSTOP, a frozen container, a process swapped out) is not. The supervisor and the actor's pool read it.
"""

import logging
import os
import threading
import time
from pathlib import Path

from pipelinerl.base.waits import StallDetector

log = logging.getLogger(__name__)
INTERVAL_S = 1.0


def heartbeat_path(output_dir: Path, role: str) -> Path:
    return Path(output_dir) / role / "heartbeat"


def start_heartbeat(output_dir: Path, role: str, interval_s: float = INTERVAL_S) -> threading.Event:
    """Beat until the process ends, or until the returned event is set."""
    path = heartbeat_path(output_dir, role)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    stop = threading.Event()
    threading.Thread(target=_beat, args=(path, interval_s, stop), name="heartbeat", daemon=True).start()
    return stop


def _beat(path: Path, interval_s: float, stop: threading.Event) -> None:
    while not stop.wait(interval_s):
        try:
            os.utime(path)  # needs no room on the disk
        except OSError as error:
            log.error("no heartbeat any more: %s", error)
            return


def beat(path: Path) -> int:
    """When the file was renewed, in nanoseconds; 0 if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


class BeatWatch:
    """How long a file has not been renewed since its first beat; before that, since the watch began."""

    def __init__(self, path: Path, interval_s: float) -> None:
        """Look every `interval_s` seconds; a beat from before now is one of an earlier start."""
        self._path, self._first = path, beat(path)
        self._stall = StallDetector(self._first, time.monotonic(), 3 * interval_s)
        self.alive = False
        """Whether there was a beat yet."""

    def look(self) -> float:
        """Seconds of silence so far."""
        last = beat(self._path)
        self.alive = self.alive or last != self._first
        return self._stall.look(last, time.monotonic())
