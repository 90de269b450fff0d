"""What preprocess keeps over a resume: texts that no announced update consumed, in order."""

from pathlib import Path

import numpy as np
import pytest

from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.preprocess.accounting import SampleAccounting
from pipelinerl.preprocess.snapshots import (
    KEPT,
    Held,
    Keeper,
    can_be_resumed_from,
)
from pipelinerl.run_state.accounting import RolloutLog, reconcile
from pipelinerl.run_state.resume_point import ResumePoint
from pipelinerl.run_state.snapshots import Snapshots, replayed_texts
from pipelinerl.streams.records import decode_record, encode_record
from tests.support.builders import group, preprocess_config, ready
from tests.unit.preprocess.conftest import Bench, make


def same(one: Sample, other: Sample) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        and type(getattr(one, name)) is type(getattr(other, name))
        and getattr(getattr(one, name), "dtype", None) == getattr(getattr(other, name), "dtype", None)
        for name in Sample.__struct_fields__
    )


def save(folder: Path, version: int, ahead: list, buffered: list, position: int) -> None:  # type: ignore[type-arg]
    state = {"ahead": ahead, "buffered": buffered, "position": position}
    Snapshots(folder, "preprocess", KEPT).save(version, state)


def newest(folder: Path, version: int) -> Held | None:
    return Snapshots(folder, "preprocess").newest(version, Held)


def test_texts_come_back_as_they_were_and_a_later_checkpoint_leaves_out_what_it_contains(
    tmp_path: Path,
) -> None:
    texts = [ready(i, role="policy", situation=None, loss_weight_scale=1 / 3) for i in range(6)]
    save(tmp_path, 8, [(2, texts[:2]), (3, texts[2:4])], texts[4:], 17)
    held = newest(tmp_path, 11)
    assert held is not None and held.position == 17 and held.version == 8
    assert all(map(same, held.samples_from(2), texts)) and len(held.samples_from(2)) == 6
    assert all(map(same, held.samples_from(3), texts[2:])) and len(held.samples_from(3)) == 4
    assert held.samples_from(2)[0].input_ids.flags.writeable
    assert replayed_texts(tmp_path, 11, 3) == 4 and replayed_texts(tmp_path, 7, 1) == 0
    assert replayed_texts(tmp_path, 0, 0) == 0


def test_the_newest_not_newer_is_taken_and_the_future_is_forgotten(tmp_path: Path) -> None:
    for version in range(1, 8):
        save(tmp_path, version, [], [ready(version)], version)
    assert newest(tmp_path, 7 - KEPT) is None
    Snapshots(tmp_path, "preprocess").restore(5, Held)
    held = newest(tmp_path, 99)
    assert held is not None and held.version == 5


@pytest.mark.parametrize(
    ("data", "expected"), [(b"PRL", "is damaged"), (b"", "is damaged"), (b"\x80\x04pickle" * 9, "is damaged")]
)
def test_a_damaged_snapshot_is_named(tmp_path: Path, data: bytes, expected: str) -> None:
    save(tmp_path, 4, [], [], 0)
    (path,) = (tmp_path / "preprocess" / "state").glob("*.rec")
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"{path} {expected}.*remove it"):
        newest(tmp_path, 4)


def test_a_snapshot_of_the_actor_with_any_byte_changed_is_refused_or_the_same(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, "actor")
    snapshots.save(4, {"next_problem": 17, "texts": 128})
    whole, state = snapshots.path(4).read_bytes(), snapshots.newest(4, dict)
    for place in range(len(whole)):
        for content in (whole[:place], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]):
            snapshots.path(4).write_bytes(content)
            try:
                found = snapshots.newest(4, dict)
            except ValueError as error:
                assert "is damaged" in str(error) and len(str(error).splitlines()) == 1
            else:
                assert found == state, content


def test_a_snapshot_of_another_format_or_with_other_types_is_refused_in_one_line(tmp_path: Path) -> None:
    save(tmp_path, 4, [], [ready(1)], 0)
    (path,) = (tmp_path / "preprocess" / "state").glob("*.rec")
    tree = decode_record(path.read_bytes())
    path.write_bytes(encode_record(tree | {"format": 1}))
    with pytest.raises(ValueError, match=f"{path} has format 1, expected 2; remove it"):
        newest(tmp_path, 4)
    path.write_bytes(encode_record(tree | {"buffered": [tree["buffered"][0] | {"reward": "much"}]}))
    with pytest.raises(ValueError, match=rf"{path} is damaged \(.*buffered\[0\].reward.*\); remove it"):
        newest(tmp_path, 4)


@pytest.mark.parametrize(
    ("step", "interval", "expected"),
    [(0, 8, True), (1, 8, False), (2, 8, True), (1, 16, True), (3, 8, True), (5, 8, True), (7, 8, True)],
)
def test_snapshots_are_taken_where_a_checkpoint_can_follow(
    tmp_path: Path, step: int, interval: int, expected: bool
) -> None:
    """Steps of 8 samples; checkpoints at 2, 4, 6, after step 3 and at the end, step 7."""
    tune = {"save_checkpoint_steps": 2, "also_save_steps": [3, 5], "max_train_steps": 7}
    cfg = preprocess_config(tmp_path, finetune=tune, derived={"texts_per_update": interval})
    assert can_be_resumed_from(step, cfg) is expected
    cfg = preprocess_config(
        tmp_path, finetune={**tune, "max_epochs": 1}, derived={"texts_per_update": interval}
    )
    assert can_be_resumed_from(step, cfg), "any step may be the last"


def test_a_keeper_forgets_consumed_steps_and_saves_once_per_version(tmp_path: Path) -> None:
    cfg = preprocess_config(
        tmp_path, texts_per_step=2, finetune={"max_train_steps": 7, "save_checkpoint_steps": 2}
    )
    keeper = Keeper(cfg, tmp_path, ResumePoint(version=0, step=0))
    texts = [ready(i) for i in range(7)]
    for step in range(3):
        keeper.written(step, texts[2 * step : 2 * step + 2])
    keeper.announced(None, texts[6:], 1)
    keeper.announced(0, texts[6:], 1)
    keeper.announced(2, texts[6:], 2)
    assert newest(tmp_path, 99) is None
    keeper.announced(4, texts[6:], 3)
    keeper.announced(4, [], 9)
    held = newest(tmp_path, 4)
    assert held is not None and [step for step, _ in held.ahead] == [2] and held.position == 3
    assert [text.group_id for text in held.samples_from(2)] == ["g4", "g5", "g6"]
    again = Keeper(cfg, tmp_path, ResumePoint(version=4, step=2)).restore()
    assert again is not None and len(again.samples_from(2)) == 3
    assert Keeper(cfg, tmp_path, ResumePoint(version=0, step=0)).restore() is None
    assert newest(tmp_path, 99) is None, "a start from the beginning leaves no snapshot behind"


def test_a_resume_with_another_batch_size_keeps_what_belongs_to_its_checkpoints(tmp_path: Path) -> None:
    """Ten steps of four texts, then of two, some of them written ahead; every third step is saved."""
    cfg = preprocess_config(
        tmp_path, texts_per_step=2, finetune={"save_checkpoint_steps": 3, "max_train_steps": 100}
    )
    keeper, texts = Keeper(cfg, tmp_path, ResumePoint(version=40, step=10)), [ready(i) for i in range(16)]
    for step in range(10, 18):
        keeper.written(step, texts[2 * (step - 10) :][:2])
    kept = []
    for step in range(11, 17):
        version = 40 + 2 * (step - 10)
        keeper.announced(version, [], step)
        held = newest(tmp_path, version)
        if held is not None and held.version == version:
            kept.append(step)
            assert [number for number, _ in held.ahead] == list(range(step, 18))
            assert len(held.samples_from(step)) == 2 * (18 - step) == replayed_texts(tmp_path, version, step)
    assert kept == [12, 15]


@pytest.mark.parametrize("bench", [{"finetune": {"save_checkpoint_steps": 1}}], indirect=True)
@pytest.mark.parametrize(("consumed", "left"), [(8, 12), (16, 4)])
def test_a_preprocess_started_again_goes_on_with_what_the_other_held(
    bench: Bench, consumed: int, left: int
) -> None:
    """Five groups of four texts make two steps of eight, of which the trainer has made one or both."""
    first = bench.preprocess
    first.take_groups([group(number) for number in range(5)])
    assert first.write_steps() and first.step == 2
    first.keeper.announced(consumed, first.buffer, 5)
    first.take_groups([group(9)])  # what came later is made anew
    with RolloutLog(bench.folder, "preprocess") as rollout_log:
        accounting = SampleAccounting(rollout_log, bench.discarded)
        session = ResumePoint(version=consumed, step=consumed // 8)
        second = make(first.cfg, bench.trainer, accounting, session, first._training_data)
        held = second.restore()
        assert held is not None and held.position == 5
        assert second.gauges()["queue/output_samples"] == left
        assert replayed_texts(bench.folder, consumed, consumed // 8) == left
        second.take_groups([group(20 + number) for number in range(2)])
        assert second.write_steps()
    again = [t for b in bench.batches() if b.step == consumed // 8 for t in b.text_ids]
    assert len({tuple(t) for t in again}) == 8
    assert reconcile(bench.folder).replayed == left


def test_a_resume_without_what_was_held_says_so(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    first = bench.preprocess
    for version, lines in ((0, 0), (8, 1)):  # a run that begins holds nothing yet
        start = ResumePoint(version, version // 8)
        assert make(first.cfg, bench.trainer, first.accounting, start, first._training_data).restore() is None
        assert len([one for one in caplog.messages if "preprocess/state was removed" in one]) == lines


@pytest.mark.parametrize("bench", [{"finetune": {"save_checkpoint_steps": 1}}], indirect=True)
def test_texts_too_long_for_a_changed_configuration_are_dropped_at_a_resume(bench: Bench) -> None:
    first = bench.preprocess
    first.take_groups([group(0)])
    first.keeper.announced(8, first.buffer, 1)
    lengths = [len(text.input_ids) for text in first.buffer]
    cfg = preprocess_config(bench.folder, finetune={"seq_length": 8, "save_checkpoint_steps": 1})
    second = make(cfg, bench.trainer, first.accounting, ResumePoint(8, 1), first._training_data)
    second.restore()
    too_long = sum(length > 8 for length in lengths)
    assert too_long and bench.discarded.counts == {"oversize": too_long}
    assert len(second.buffer) == len(lengths) - too_long
