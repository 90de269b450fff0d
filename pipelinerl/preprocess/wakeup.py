"""Waiting for either new groups or news from the trainer, whichever comes first."""

from __future__ import annotations

import os


class Wakeup:
    """A pipe that another thread writes to; `fileno` lets it stand beside stream readers in `wait_any`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        return self._read

    def notify(self) -> None:
        """Wake the waiter; a full pipe has woken it already."""
        try:
            os.write(self._write, b"x")
        except BlockingIOError:
            return

    def clear(self) -> None:
        """Forget past notifications; call it before looking at what they were about."""
        try:
            while os.read(self._read, 4096):
                continue
        except BlockingIOError:
            return

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)
