"""What a failed rollout means for its group and for the run; asked by the scheduler."""

from collections import deque
from collections.abc import Iterable

from pipelinerl.actor.groups import Group
from pipelinerl.actor.messages import Ending
from pipelinerl.run_state.accounting import commonest_of

NO_TEXT = "no sample to train on; training_texts of the rollout policy's result is empty"
WINDOW = 200
"""Recent rollouts that are judged."""
JUDGED_FROM = 20
"""Rollouts needed before the share of failures means anything."""


def is_lost(group: Group, on_error: str) -> bool:
    """Whether failures have decided that a group will not be published (`actor.on_rollout_error`).

    `drop_rollout`: a group goes on if two rollouts remain (or all, where there was only one attempt).
    `discard_group`: any failure drops it.
    """
    failed = sum(rollout.ending is Ending.FAILED for rollout in group.finished.values())
    if on_error == "discard_group":
        return failed > 0
    # A lone rollout has nothing to be compared with, unless the group was to have one only.
    return group.attempts - failed < min(2, group.attempts)


class FailureMonitor:
    """Share of failures among recent rollouts, with their commonest reason.

    Rollouts that fail at once end before others that began with them and succeed later: those that run still,
    and began before the newest that ended, are taken for successes.
    """

    def __init__(self, max_fraction: float):
        self.max_fraction = max_fraction
        self._recent: deque[str | None] = deque(maxlen=WINDOW)
        self._newest = -1

    def record(self, reason: str | None, key: int = 0) -> None:
        """A rollout ended; `reason` says why it failed, None that it did not. Keys grow with their starts."""
        self._recent.append(reason)
        self._newest = max(self._newest, key)

    def complaint(self, running: Iterable[int] = ()) -> str | None:
        """One line once too many rollouts fail, else None; `running`: keys of those that have not ended."""
        total = len(self._recent)
        failed = total - self._recent.count(None)
        # A few failures at the start are no share of anything.
        if total < JUDGED_FROM or failed <= self.max_fraction * total:
            return None
        if failed <= self.max_fraction * (total + sum(key < self._newest for key in running)):
            return None
        reasons = [reason for reason in self._recent if reason is not None]
        reason, count = commonest_of(reasons)
        return (
            f"{failed} of the last {total} rollouts failed or had no sample, more than "
            f"actor.max_failed_fraction={self.max_fraction}; the commonest reason ({count} times): {reason}"
        )
