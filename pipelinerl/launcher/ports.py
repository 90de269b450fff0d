"""Ports that no other launcher on this machine takes between choosing them and binding them.

An engine binds its port only after it has loaded its model. Until then a second launcher would find the port
free, and each would talk to the other's engine.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO

from pipelinerl.base.closing import Closing
from pipelinerl.launcher.placement import is_free


class ReservedPorts(Closing):
    """A context manager whose `take` says whether a port is free, and keeps it if so.

    The reservation is a lock on a file in the system's temporary folder; it ends with this process.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / f"pipelinerl-ports-{os.getuid()}"
        self._held: list[IO[bytes]] = []

    def take(self, port: int) -> bool:
        """Whether `port` is free here; then no other launcher gets it while this one lives."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (self._folder / str(port)).open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return False
        if not is_free(port):
            lock.close()
            return False
        self._held.append(lock)
        return True

    def close(self) -> None:
        for lock in self._held:
            lock.close()
        self._held.clear()
