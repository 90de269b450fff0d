"""What the trainer counts beside its own work."""

from __future__ import annotations

from pathlib import Path

from pipelinerl.finetune.collect import StaleInQueue
from pipelinerl.state import DiscardedTexts


def test_texts_too_old_to_be_queued_are_counted_once_also_over_a_restart_of_preprocess(
    tmp_path: Path,
) -> None:
    before = DiscardedTexts(tmp_path, "preprocess")
    before.add("stale", 5)  # of an earlier session
    before.close()
    with StaleInQueue(tmp_path) as queue:
        assert queue.take() == 0
        first = DiscardedTexts(tmp_path, "preprocess")
        first.add("stale", 3)
        first.add("zero_advantage", 7)
        assert queue.take() == 3 and queue.take() == 0
        first.add("stale", 1)
        first.close()
        again = DiscardedTexts(tmp_path, "preprocess")
        again.add("stale", 2)
        again.close()
        assert queue.take() == 3
