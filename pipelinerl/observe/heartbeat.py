"""A sign of life once a second: the modification time of `<output_dir>/<role>/heartbeat`.

A thread renews it, so a role that computes, or waits within its deadlines, is alive, and one that is stopped
(SIGSTOP, a frozen container, a process swapped out) is not. The supervisor reads it. Standard library only.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

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
