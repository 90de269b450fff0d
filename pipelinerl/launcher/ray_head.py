"""Whether the head of a Ray cluster still answers, and leaving one that does not; knows no Ray itself.

Without its control process Ray's own calls block, and after a time of its own Ray ends the process that made
them without a word. So both are done in threads that nobody has to wait for.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from pipelinerl.base.waits import StallDetector, WaitExpired

SILENT_S = 30.0
"""Without an answer for so long the cluster is given up; Ray's own limit must be longer."""
ASK_EVERY_S = 5.0
LEAVE_S = 10.0


class HeadWatch:
    """Asks the head every `ASK_EVERY_S`; any answer counts, an error is none. A thread of its own does it."""

    def __init__(self, label: str, ask: Callable[[], object], silent_s: float = SILENT_S) -> None:
        self._label, self._ask, self._silent_s = label, ask, silent_s
        self._answers = 0
        # A launcher that was stopped itself and goes on blames nobody for the time that it missed.
        self._silence = StallDetector(0, time.monotonic(), longest_s=ASK_EVERY_S)
        self._closing = threading.Event()
        threading.Thread(target=self._watch, name="ray-head", daemon=True).start()

    def _watch(self) -> None:
        while not self._closing.wait(ASK_EVERY_S):
            with suppress(Exception):  # of any kind: whatever Ray says without its head
                self._ask()
                self._answers += 1

    def check(self) -> None:
        """Raise WaitExpired where the head has been silent for too long; to be called every few seconds."""
        if self._silence.look(self._answers, time.monotonic()) >= self._silent_s:
            detail = "nothing can be started, counted or given back in this cluster"
            raise WaitExpired(f"an answer of {self._label}", self._silent_s, detail)

    def close(self) -> None:
        self._closing.set()


def ends_within(deadline_s: float, work: Callable[[], None]) -> bool:
    """Do `work` in a thread of its own; whether it has ended in time, whatever came of it."""
    worker = threading.Thread(target=work, name="leave-ray", daemon=True)
    worker.start()
    worker.join(deadline_s)
    return not worker.is_alive()
