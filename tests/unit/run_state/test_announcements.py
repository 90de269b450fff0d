"""The trainer's messages and the view of them that the other processes keep."""

import threading
from pathlib import Path

import pytest

from pipelinerl.base.waits import WaitExpired
from pipelinerl.run_state.announcements import (
    AnnouncedVersion,
    DiscardedTexts,
    TrainerAnnouncements,
    TrainerState,
    WeightUpdateSuccess,
    forget_announcements,
    parse_message,
    trainer_stream,
)
from pipelinerl.streams import CorruptRecord, read_stream, set_streams_backend
from tests.support.processes import until
from tests.unit.streams.conftest import fill

pytestmark = pytest.mark.usefixtures("choose")  # on disk and over redis
LONG_S = 30.0


def test_messages_have_upstreams_fields_and_their_own_time(tmp_path: Path) -> None:
    with TrainerAnnouncements(tmp_path) as trainer, read_stream(trainer_stream(tmp_path)) as sent:
        trainer.samples_processed(3)
        trainer.weight_update_success(8)
        first, second = sent.read_available()
    assert first.keys() == {"kind", "samples_processed", "timestamp"}
    assert second["timestamp"] >= first["timestamp"] > 1e9
    assert parse_message(second) == WeightUpdateSuccess(8, timestamp=second["timestamp"])


@pytest.mark.parametrize("record", [{"kind": "weight_update_request"}, {}, {"kind": "weight_update_success"}])
def test_malformed_messages_are_named(record: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="trainer message"):
        parse_message(record)


def test_the_state_follows_the_trainer_and_those_who_discard(tmp_path: Path) -> None:
    changed = threading.Event()
    with TrainerState(tmp_path) as state, TrainerAnnouncements(tmp_path) as trainer:
        state.subscribe(changed.set)
        assert state.propagated_weight_version is None
        trainer.samples_processed(0)
        trainer.weight_update_success(0)
        assert state.wait_for_version(LONG_S) == 0
        preprocess = DiscardedTexts(tmp_path)
        preprocess.add("filtered", 8)
        preprocess.add("filtered", 8)
        preprocess.add("oversize", 1)
        preprocess.add("failed", 0)
        assert preprocess.counts == {"filtered": 16, "oversize": 1}
        until(lambda: state.discarded == 16 + 1, "the news of discarded texts")
        assert changed.is_set()
        trainer.samples_processed(16)
        trainer.weight_update_success(16)
        until(lambda: state.propagated_weight_version == 16, "the news of a version")
        assert state.samples_processed == 16
        trainer.training_done()
        until(lambda: state.training_done, "the news of the end")
        preprocess.close()


def test_waiting_for_a_version_expires_by_name(tmp_path: Path) -> None:
    expected = pytest.raises(WaitExpired, match=r"waited 0.05 s for the first weight version")
    with TrainerState(tmp_path) as state, expected:
        state.wait_for_version(0.05)


def test_a_late_reader_knows_everything(tmp_path: Path) -> None:
    with TrainerAnnouncements(tmp_path) as trainer:
        for version in range(0, 40, 8):
            trainer.weight_update_success(version)
    with TrainerState(tmp_path) as state:
        # The thread takes in at once all that is there.
        assert state.wait_for_version(LONG_S) == 32


def test_a_new_start_forgets_the_announcements_of_the_last(tmp_path: Path) -> None:
    with TrainerAnnouncements(tmp_path) as trainer:
        trainer.weight_update_success(99)
        trainer.training_done()
    forget_announcements(tmp_path)
    with TrainerState(tmp_path) as state, pytest.raises(WaitExpired):
        assert not state.training_done
        state.wait_for_version(0.05)


def test_a_corrupt_message_surfaces_in_whoever_reads_the_state(tmp_path: Path) -> None:
    set_streams_backend("files")
    fill(trainer_stream(tmp_path), {"kind": "samples_processed", "samples_processed": 1})
    path = next(p for p in trainer_stream(tmp_path).directory.iterdir() if p.suffix == ".rec")
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with TrainerState(tmp_path) as state:
        with pytest.raises(CorruptRecord):
            state.wait_for_version(LONG_S)
        with pytest.raises(CorruptRecord):
            _ = state.training_done


def test_a_version_is_known_before_what_was_written_because_of_it(tmp_path: Path) -> None:
    with TrainerAnnouncements(tmp_path) as trainer, AnnouncedVersion(tmp_path) as version:
        assert version.newest() is None
        for number in (0, 8, 8, 16):
            trainer.samples_processed(number)
            trainer.weight_update_success(number)
            assert version.newest() == number
        trainer.training_done()
        assert version.newest() == 16
