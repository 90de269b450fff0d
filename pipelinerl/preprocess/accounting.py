"""Ends of rollouts and refunds of samples that preprocess decides on."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.run_state.accounting import Outcome, RolloutLog
from pipelinerl.run_state.announcements import DiscardedTexts


class SampleAccounting:
    """Counts every dropped sample by reason, and each rollout whose last sample is dropped.

    A rollout of which a sample went to the trainer is the trainer's to account for. Rollouts are named.
    """

    def __init__(self, rollout_log: RolloutLog, discarded: DiscardedTexts) -> None:
        self._rollout_log, self.discarded = rollout_log, discarded
        self._here: Counter[str] = Counter()
        """Samples of each rollout that are in this process."""
        self._published: set[str] = set()
        """Rollouts of which some sample is not here any more, because the trainer has got it."""

    def arrived(self, rollouts: Iterable[str]) -> None:
        """One sample of each of these rollouts came."""
        self._here.update(rollouts)

    def restored(self, samples: Iterable[Sample]) -> None:
        """Samples kept over a resume; their rollouts arrived in an earlier start."""
        rollouts = [sample.rollout for sample in samples]
        self.arrived(rollouts)
        self._rollout_log.record(Outcome.REPLAYED, dict.fromkeys(rollouts))

    def dropped(self, samples: Iterable[tuple[str, str]]) -> None:
        """Rollout and reason of each dropped sample; all are refunded to the lag budget."""
        counts: dict[str, int] = defaultdict(int)
        ended: dict[str, list[str]] = defaultdict(list)
        for rollout, reason in samples:
            counts[reason] += 1
            if self._leave(rollout, published=False):
                ended[reason].append(rollout)
        for reason, n in counts.items():
            self.discarded.add(reason, n)
        for reason, rollouts in ended.items():
            if reason == "stale":
                self._rollout_log.record(Outcome.STALE, rollouts, "max_lag_in_queue")
            else:
                self._rollout_log.record(Outcome.FILTERED, rollouts, reason)

    def published(self, samples: Iterable[Sample]) -> None:
        """These went to the trainer."""
        for sample in samples:
            self._leave(sample.rollout, published=True)

    def _leave(self, rollout: str, published: bool) -> bool:
        """One sample less; True when the rollout ended here without any sample going to the trainer."""
        if published:
            self._published.add(rollout)
        self._here[rollout] -= 1
        if self._here[rollout] > 0:
            return False
        del self._here[rollout]
        ended_here = rollout not in self._published
        self._published.discard(rollout)
        return ended_here
