"""Ends of rollouts and refunds of texts that preprocess decides on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from pipelinerl.preprocess.ready import ReadyText
from pipelinerl.preprocess.validate import Record, metadata_of
from pipelinerl.run_state.accounting import Outcome, RolloutLog, rollout_id
from pipelinerl.run_state.announcements import DiscardedTexts


@dataclass(slots=True)
class _Open:
    """Texts of a rollout that are still here, and whether the trainer has got one."""

    texts: int = 0
    published: bool = False


class Books:
    """Counts every dropped text by reason, and each rollout whose last text is dropped.

    A rollout of which a text went to the trainer is the trainer's to account for.
    """

    def __init__(self, ledger: RolloutLog, discarded: DiscardedTexts) -> None:
        self._ledger, self._discarded = ledger, discarded
        self._open: dict[str, _Open] = defaultdict(_Open)
        self.dropped_texts = 0

    @property
    def counts(self) -> dict[str, int]:
        """Texts dropped by reason since the start."""
        return self._discarded.counts

    def arrived(self, texts: Iterable[Record]) -> None:
        for text in texts:
            self._open[_rollout_of(text)].texts += 1

    def restored(self, texts: Iterable[ReadyText]) -> None:
        """Texts kept over a resume; their rollouts arrived in an earlier start."""
        rollouts: dict[str, None] = {}
        for text in texts:
            self._open[text.rollout].texts += 1
            rollouts[text.rollout] = None
        self._ledger.record(Outcome.REPLAYED, rollouts)

    def dropped(self, texts: Iterable[tuple[Record | ReadyText, str]]) -> None:
        """Texts with their reasons; each is refunded to the lag budget."""
        counts: dict[str, int] = defaultdict(int)
        ended: dict[str, list[str]] = defaultdict(list)
        for text, reason in texts:
            counts[reason] += 1
            rollout = text.rollout if isinstance(text, ReadyText) else _rollout_of(text)
            if self._leave(rollout, published=False):
                ended[reason].append(rollout)
        for reason, n in counts.items():
            self._discarded.add(reason, n)
            self.dropped_texts += n
        for reason, rollouts in ended.items():
            if reason == "stale":
                self._ledger.record(Outcome.STALE, rollouts, "max_lag_in_queue")
            else:
                self._ledger.record(Outcome.FILTERED, rollouts, reason)

    def published(self, texts: Iterable[ReadyText]) -> None:
        for text in texts:
            self._leave(text.rollout, published=True)

    def _leave(self, rollout: str, published: bool) -> bool:
        """One text less; True when the rollout ended here without any text going to the trainer."""
        entry = self._open[rollout]
        entry.texts -= 1
        entry.published |= published
        if entry.texts > 0:
            return False
        del self._open[rollout]
        return not entry.published


def _rollout_of(text: Record) -> str:
    return rollout_id(str(text.get("group_id")), metadata_of(text).get("rollout_index", -1))
