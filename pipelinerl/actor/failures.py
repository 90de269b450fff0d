"""What a failed rollout means for its group and for the run."""

from collections import Counter, deque
from dataclasses import dataclass

from pipelinerl.actor.groups import Group
from pipelinerl.actor.messages import Ending

WINDOW = 200
"""Recent rollouts that are judged."""
JUDGED_FROM = 20
"""Rollouts needed before the share of failures means anything."""


@dataclass(frozen=True)
class Verdict:
    """What becomes of a complete group: published, or dropped with a reason."""

    publish: bool
    reason: str = ""


def judge(group: Group, on_error: str) -> Verdict:
    """Whether a complete group is published under `actor.on_rollout_error`.

    `drop_rollout`: a group goes on if two rollouts remain (or all, where there was only one attempt).
    `discard_group`: any failure drops it. A group without any sample is not published.
    """
    failed = [rollout for rollout in group.finished.values() if rollout.ending is Ending.FAILED]
    remaining = len(group.finished) - len(failed)
    # A lone rollout has nothing to be compared with, unless the group was to have one only.
    if failed and (on_error == "discard_group" or remaining < min(2, group.attempts)):
        return Verdict(False, f"group_discarded: {failed[0].reason}")
    return Verdict(any(rollout.samples for rollout in group.finished.values()))


class FailureMonitor:
    """Share of failures among recent rollouts, with their commonest reason."""

    def __init__(self, max_fraction: float):
        self.max_fraction = max_fraction
        self._recent: deque[str | None] = deque(maxlen=WINDOW)
        self._failed = 0

    def record(self, reason: str | None) -> None:
        """A rollout ended; `reason` says why it failed, None that it did not."""
        if len(self._recent) == WINDOW:
            self._failed -= self._recent[0] is not None
        self._recent.append(reason)
        self._failed += reason is not None

    def complaint(self) -> str | None:
        """One line once too many rollouts fail, else None."""
        failed, total = self._failed, len(self._recent)
        # A few failures at the start are no share of anything.
        if total < JUDGED_FROM or failed <= self.max_fraction * total:
            return None
        reason, count = Counter(reason for reason in self._recent if reason is not None).most_common(1)[0]
        return (
            f"{failed} of the last {total} rollouts failed, more than actor.max_failed_fraction="
            f"{self.max_fraction}; the commonest reason ({count} times): {reason}"
        )
