"""Whether the head of a Ray cluster still answers, and leaving one that does not; knows no Ray itself.

Without its control process Ray's own calls block, and after a time of its own Ray ends the process that made
them without a word. So both are done in threads that nobody has to wait for.
"""

import threading
from collections.abc import Callable

from pipelinerl.base.waits import Wait

SILENT_S = 30.0
"""Without an answer for so long the cluster is given up; Ray's own limit must be longer."""
ASK_EVERY_S = 5.0
LEAVE_S = 10.0


class HeadWatch:
    """Asks the head every `ASK_EVERY_S`; any answer counts, an error is none. A thread of its own does it."""

    def __init__(self, label: str, ask: Callable[[], object], silent_s: float = SILENT_S) -> None:
        self._label, self._ask, self._silent_s = label, ask, silent_s
        self._wait = self._new_wait()
        self._closing = threading.Event()
        threading.Thread(target=self._watch, name="ray-head", daemon=True).start()

    def _new_wait(self) -> Wait:
        return Wait(f"an answer of {self._label}", self._silent_s)

    def _watch(self) -> None:
        while not self._closing.wait(ASK_EVERY_S):
            try:
                self._ask()
            except Exception:  # of any kind: whatever Ray says without its head
                continue
            self._wait = self._new_wait()

    def check(self) -> None:
        """Raise WaitExpired where the head has been silent for too long."""
        self._wait.check("nothing can be started, counted or given back in this cluster")

    def close(self) -> None:
        self._closing.set()


def ends_within(deadline_s: float, work: Callable[[], None]) -> bool:
    """Do `work` in a thread of its own; whether it has ended in time, whatever came of it."""
    worker = threading.Thread(target=work, name="leave-ray", daemon=True)
    worker.start()
    worker.join(deadline_s)
    return not worker.is_alive()
