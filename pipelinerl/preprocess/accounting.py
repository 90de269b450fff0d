"""Ends of rollouts and refunds of samples that preprocess decides on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.run_state.accounting import Outcome, RolloutLog
from pipelinerl.run_state.announcements import DiscardedTexts


@dataclass(slots=True)
class _Open:
    """Samples of a rollout that are still here, and whether the trainer has got one."""

    samples: int = 0
    published: bool = False


class SampleAccounting:
    """Counts every dropped sample by reason, and each rollout whose last sample is dropped.

    A rollout of which a sample went to the trainer is the trainer's to account for. Rollouts are named.
    """

    def __init__(self, rollout_log: RolloutLog, discarded: DiscardedTexts) -> None:
        self._rollout_log, self.discarded = rollout_log, discarded
        self._open: dict[str, _Open] = defaultdict(_Open)

    def arrived(self, rollouts: Iterable[str]) -> None:
        """One sample of each of these rollouts came."""
        for rollout in rollouts:
            self._open[rollout].samples += 1

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
        entry = self._open[rollout]
        entry.samples -= 1
        entry.published |= published
        if entry.samples > 0:
            return False
        del self._open[rollout]
        return not entry.published
