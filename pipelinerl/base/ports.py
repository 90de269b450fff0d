"""Which ports are free, and kept from every other run on this host until they are bound.

An engine binds its port only after it has loaded its model, and a rendezvous of engines and trainer only when
all of them have been told of it. Until then a second run would find the port free, and each would talk to the
other's engine.
"""

import contextlib
import fcntl
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from pipelinerl.base.closing import Closing

LOOPBACK = "127.0.0.1"


def is_free(port: int, address: str = LOOPBACK) -> bool:
    """Whether nothing listens on the port of this host's `address` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def is_free_everywhere(port: int, address: str) -> bool:
    """Whether nothing listens on the port, neither at `address` nor for this host alone."""
    return all(is_free(port, one) for one in {LOOPBACK, address})


class ReservedPorts(Closing):
    """Its `take` says whether a port is free, and keeps it if so until this is closed or the process ends.

    The reservation is a lock on a file in the system's temporary folder.
    """

    def __init__(self, folder: Path | None = None, free: Callable[[int], bool] = is_free) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / f"pipelinerl-ports-{os.getuid()}"
        self._free = free
        self._held: list[IO[bytes]] = []

    def take(self, port: int) -> bool:
        """Whether `port` is free here; then nobody else who asks gets it while this one lives."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (self._folder / str(port)).open("wb")
        with contextlib.suppress(OSError):  # another run holds the lock
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._free(port):
                self._held.append(lock)
                return True
        lock.close()
        return False

    def close(self) -> None:
        while self._held:
            self._held.pop().close()
