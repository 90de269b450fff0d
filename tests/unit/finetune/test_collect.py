"""What the trainer counts beside its own work."""

from pathlib import Path

from pipelinerl.finetune.collect import StaleInQueue
from pipelinerl.run_state.announcements import DiscardedTexts
from pipelinerl.run_state.epochs import completed_epochs, note_problems


def test_texts_too_old_to_be_queued_are_counted_once_also_over_a_restart_of_preprocess(
    tmp_path: Path,
) -> None:
    before = DiscardedTexts(tmp_path)
    before.add("stale", 5)  # of an earlier session
    before.close()
    with StaleInQueue(tmp_path) as queue:
        assert queue.take() == 0
        first = DiscardedTexts(tmp_path)
        first.add("stale", 3)
        first.add("zero_advantage", 7)
        assert queue.take() == 3 and queue.take() == 0
        first.add("stale", 1)
        first.close()
        again = DiscardedTexts(tmp_path)
        again.add("stale", 2)
        again.close()
        assert queue.take() == 3


def test_epochs_count_draws_over_problems(tmp_path: Path) -> None:
    assert completed_epochs(tmp_path, ["0-000007/0"]) == 0, "no actor has said how many problems there are"
    note_problems(tmp_path, 4)
    seen = [["0-000002/7"], ["0-000003/0", "0-000001/0"], [], ["1-000010/0"], ["recorded/0"]]
    assert [completed_epochs(tmp_path, rollouts) for rollouts in seen] == [0, 1, 0, 2, 0]
