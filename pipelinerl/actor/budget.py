"""How many samples may be in flight, so that none is older than `max_lag` when it is trained.

A pure function of levels: it does not matter how often, or in how large steps, versions are seen.
"""

from collections import deque
from collections.abc import Iterable

RECENT_ROLLOUTS = 256


class LagBudget:
    """Admission of training groups, in samples.

    A group starts while `reserved - version - discarded < bound`: `reserved` are the samples produced and
    those expected of running rollouts, `discarded` those that will never be trained. The overshoot is below
    one group. Until a rollout has shown how many samples to expect, one group runs at a time, or as many as
    are risked.
    """

    def __init__(
        self,
        bound: int | None,
        start_version: int,
        recent: Iterable[float] = (),
        replayed: int = 0,
    ):
        """`bound` is `Staleness.admitted`, None without a bound; `recent` are samples of earlier rollouts,
        `replayed` those that a resumed run has kept.
        """
        self.bound = bound
        # Levels and not rates: a version that is announced, or heard of, late or together with the next one
        # changes nothing in the end.
        self.produced = start_version + replayed
        """Samples of finished groups, counted from the restored version, with those kept over a resume."""
        self.risked_groups = 1
        """Groups that may run before a rollout has shown how many samples to expect."""
        self.running_groups = 0
        self.running_rollouts = 0
        self.running_texts = 0
        """Samples of finished rollouts in groups that still run."""
        self.recent: deque[float] = deque(recent, maxlen=RECENT_ROLLOUTS)
        """Samples of recent rollouts, oldest first: what a snapshot keeps."""

    @property
    def texts_per_rollout(self) -> float | None:
        """Mean of recent rollouts; None before the first."""
        return sum(self.recent) / len(self.recent) if self.recent else None

    @property
    def reserved(self) -> float:
        return self.produced + self.running_texts + self.running_rollouts * (self.texts_per_rollout or 0.0)

    def admits(self, version: int, discarded: int) -> bool:
        """Whether another group may start now."""
        if self.bound is None:
            return True
        if not self.texts_per_rollout:
            # Nothing says yet whether a rollout has one sample or fifty, and rollouts that had none say it
            # neither: one group is risked at a time; of more, each rollout counts as the sample it may have.
            at_least = self.produced + self.running_texts + self.running_rollouts - version - discarded
            risked = self.running_groups < self.risked_groups and at_least < self.bound
            return self.running_rollouts == 0 or risked
        return self.reserved - version - discarded < self.bound

    def group_started(self, attempts: int) -> None:
        self.running_groups += 1
        self.running_rollouts += attempts

    def rollout_finished(self, texts: int) -> None:
        """A rollout of a running training group ended, with that many samples."""
        # Its expected number is replaced by its own at once, not when the group is complete: a group waits
        # for its slowest rollout, and meanwhile a wrong guess would hold others back or let too many start.
        self.running_rollouts -= 1
        self.running_texts += texts
        self.observe(texts)

    def rollouts_cancelled(self, count: int) -> None:
        """Rollouts of a running group that will not start after all."""
        self.running_rollouts -= count

    def group_finished(self, texts: int, published: int) -> None:
        """A group whose rollouts had `texts` samples ended, and `published` of them went into the stream."""
        self.running_groups -= 1
        self.running_texts -= texts
        self.produced += published  # 0 for a dropped group, whose place is free for another at once

    def observe(self, texts: int) -> None:
        """Learn how many samples a rollout has (evaluation rollouts teach it as well)."""
        self.recent.append(texts)
