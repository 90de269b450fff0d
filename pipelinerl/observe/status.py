"""`<output_dir>/<role>/status.json`: what a process is doing and waiting for, rewritten when it changes.

    status = StatusFile(output_dir, "actor")
    status.set(version=3, texts=96)

The launcher's progress line and people with `cat` read it; nothing in the pipeline depends on it.
"""

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from pipelinerl.base.closing import Closing
from pipelinerl.base.files import write_whole
from pipelinerl.base.waits import current_waits

log = logging.getLogger(__name__)


class StatusFile(Closing):
    """Writes the file from a background thread every `interval_s` seconds while something changes."""

    def __init__(self, output_dir: Path, role: str, interval_s: float = 1.0) -> None:
        self.path = Path(output_dir) / role / "status.json"
        self._role = role
        self._fields: dict[str, Any] = {}
        self._written: dict[str, Any] = {}
        self._failed = False
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._interval_s = interval_s
        self._thread = threading.Thread(target=self._run, name="status-file", daemon=True)
        self.write()
        self._thread.start()

    def set(self, **fields: Any) -> None:
        """Set fields (numbers or short strings, never text of a task); None removes one."""
        with self._lock:
            merged = self._fields | fields
            self._fields = {name: value for name, value in merged.items() if value is not None}

    def write(self) -> None:
        """Write now if anything changed; readers never see half a file."""
        with self._lock:
            content = {"role": self._role, "pid": os.getpid(), **self._fields, "waits": current_waits()}
            if content == self._written:
                return
            self._written = content
            try:
                shown = {**content, "time": round(time.time(), 3)}
                write_whole(self.path, msgspec.json.encode(shown) + b"\n")
            except OSError as error:  # nothing depends on the file; what matters will say by itself
                if not self._failed:
                    log.warning("%s cannot be written: %s", self.path, error)
                self._failed = True

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self.write()

    def close(self) -> None:
        if not self._closing.is_set():
            self._closing.set()
            self._thread.join(timeout=5)
            self.write()
