"""Backups of the replay buffer beside the actor's snapshots, asked for by the checkpoint hook."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from domains.raro.pairs import PairBuffer


class BackupWriter:
    """Writes a backup when one is asked for and the last is old enough; never two at a time."""

    def __init__(self, buffer: PairBuffer, path: Path, every_s: float) -> None:
        self.buffer, self.path, self.every_s = buffer, path, every_s
        self._thread = ThreadPoolExecutor(1, "replay backup")
        self.running: Future[None] | None = None
        """The last backup that was started."""
        self._started_s = float("-inf")

    def checkpoint(self, now_s: float | None = None) -> None:
        """Start a backup if it is time. Raises the error of an earlier one."""
        now_s = time.monotonic() if now_s is None else now_s
        if self.running is not None:
            if not self.running.done():
                return
            self.running.result()
        if now_s - self._started_s >= self.every_s:
            self._started_s = now_s
            self.running = self._thread.submit(self.buffer.backup, self.path)
