"""Every rollout is counted exactly once, whatever order and roles its ends were recorded in."""

import re
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelinerl.run_state.accounting import (
    EVAL_ENDS,
    TRAINING_ENDS,
    Outcome,
    RolloutAccounting,
    RolloutLog,
    log_path,
    log_size,
    reconcile,
    rollout_id,
)

ROLES = ["actor", "preprocess", "finetune"]
names = st.integers(0, 30).map(lambda n: rollout_id(f"g{n // 4}", n % 4))
entries = st.lists(
    st.tuples(st.sampled_from(ROLES), st.sampled_from(TRAINING_ENDS), st.lists(names, max_size=5)),
    max_size=40,
)


@given(entries, st.sets(names))
@settings(max_examples=50)
def test_the_sums_add_up_for_any_history(
    history: list[tuple[str, Outcome, list[str]]], idle: set[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        output_dir = Path(folder)
        recorded = {role: RolloutLog(output_dir, role) for role in ROLES}
        started = idle | {name for _, _, batch in history for name in batch}
        recorded["actor"].record(Outcome.STARTED, sorted(started))
        for role, outcome, batch in history:
            recorded[role].record(outcome, batch, reason="why")
        for log in recorded.values():
            log.close()
        counts = reconcile(output_dir)
        assert counts.adds_up
        assert counts.started == len(started)
        # An independent model of the precedence: the first end in order that mentions a rollout.
        left = set(started)
        for outcome in TRAINING_ENDS:
            mentioned = {n for _, o, batch in history if o is outcome for n in batch} & left
            assert counts[outcome] == len(mentioned)
            left -= mentioned
        assert counts.unfinished == len(left)


def test_a_text_that_was_trained_outweighs_one_that_was_stale(
    tmp_path: Path, actor: RolloutLog, trainer: RolloutLog
) -> None:
    actor.record(Outcome.STARTED, ["g/0", "g/1", "g/2"])
    trainer.record(Outcome.STALE, ["g/0", "g/1"], "max_lag")
    trainer.record(Outcome.TRAINED, ["g/0"])
    actor.record(Outcome.FAILED, ["g/2"], "timeout")
    counts = reconcile(tmp_path)
    assert (counts[Outcome.TRAINED], counts[Outcome.STALE], counts[Outcome.FAILED]) == (1, 1, 1)
    assert counts.reasons == {Outcome.STALE: {"max_lag": 1}, Outcome.FAILED: {"timeout": 1}}
    assert counts.lines()[0] == (
        "rollouts: 3 started = 1 trained + 1 stale + 0 filtered + 1 failed + 0 empty + 0 unfinished"
    )


def test_tries_that_were_made_again_are_told_and_change_no_sum(tmp_path: Path, actor: RolloutLog) -> None:
    """Three rollouts: two tries of the first failed and one of the second; the third failed at once."""
    actor.record(Outcome.STARTED, ["0-0/0", "0-0/1", "0-0/2"])
    actor.record(Outcome.RETRIED, ["0-0/0", "0-0/0"], "TimeoutError: slow after 31 s (mine.py:9)")
    actor.record(Outcome.RETRIED, ["0-0/1"], "TimeoutError: slow after 7 s (mine.py:9)")
    actor.record(Outcome.FAILED, ["0-0/2"], "KeyError: 'x' (mine.py:4)")
    counts = reconcile(tmp_path)
    assert (counts.started, counts[Outcome.FAILED], counts.unfinished, counts.adds_up) == (3, 1, 2, True)
    (line,) = [line for line in counts.lines() if "made again" in line]
    assert line == "failed tries that were made again: 3 = TimeoutError: slow after # s (mine.py:9) 3"


def test_a_run_with_hundreds_of_reasons_counts_each_kind_as_often_as_it_occurred(
    tmp_path: Path, actor: RolloutLog
) -> None:
    """Words of single rollouts take the place of no other reason, of this end or of another."""
    names = [rollout_id(f"0-{number:06d}", 0) for number in range(1511)]
    actor.record(Outcome.STARTED, names)
    rest = iter(names)
    for number in range(300):
        actor.record(Outcome.FAILED, [next(rest)], f"KeyError: 'row-{number}' (mine.py:7)")
        actor.record(Outcome.FAILED, [next(rest)], f"ValueError: no answer in 'it is {number}' (mine.py:9)")
        word = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        actor.record(Outcome.FAILED, [next(rest)], f"RuntimeError: {word} was said (mine.py:11)")
    for number in range(200):
        actor.record(Outcome.FAILED, [next(rest)], f"KeyError: 'column-{number}' (mine.py:3)")
        actor.record(Outcome.FAILED, [next(rest)], f"OSError: disk is full after {number} (mine.py:5)")
    actor.record(Outcome.FAILED, [next(rest) for _ in range(206)], "TypeError: late (mine.py:13)")
    actor.record(Outcome.STALE, [next(rest) for _ in range(5)], "too_old")
    _, stale, failed = reconcile(tmp_path).lines()
    assert stale == "stale: too_old 5"
    found = re.findall(r"(\w+Error): [^,]* \(mine\.py:(\d+)\) (\d+)", failed)
    assert sorted((type_, int(line), int(count)) for type_, line, count in found) == [
        ("KeyError", 3, 200),
        ("KeyError", 7, 300),
        ("OSError", 5, 200),
        ("RuntimeError", 11, 300),
        ("TypeError", 13, 206),
        ("ValueError", 9, 300),
    ]


def test_evaluation_rollouts_are_counted_apart(tmp_path: Path, actor: RolloutLog) -> None:
    actor.record(Outcome.EVAL_STARTED, ["t0/0", "t1/0", "t2/0"])
    actor.record(Outcome.EVAL_DONE, ["t0/0"])
    actor.record(Outcome.EVAL_FAILED, ["t1/0"], "timeout")
    actor.record(Outcome.STARTED, ["g/0"])
    counts = reconcile(tmp_path)
    assert counts.adds_up
    assert (counts.started, counts.unfinished) == (1, 1)
    assert [counts.eval_ends[o] for o in EVAL_ENDS] == [1, 1]
    assert counts.eval_unfinished == 1
    assert counts.lines()[1] == "evaluation rollouts: 3 started = 1 done + 1 failed + 1 unfinished"


def test_an_end_without_a_start_and_a_second_start_do_not_add_up(tmp_path: Path, actor: RolloutLog) -> None:
    actor.record(Outcome.STARTED, ["g/0"])
    actor.record(Outcome.TRAINED, ["g/1"])
    counts = reconcile(tmp_path)
    assert not counts.adds_up and counts.never_started == ("g/1",)
    assert "rollout accounting error: 1 ended and never started, such as g/1" in counts.lines()
    actor.record(Outcome.STARTED, ["g/1"])
    assert reconcile(tmp_path).adds_up
    actor.record(Outcome.STARTED, ["g/0"])
    assert reconcile(tmp_path).started_twice == ("g/0",)


def test_a_line_torn_by_a_kill_is_reported_and_harms_no_other(tmp_path: Path) -> None:
    with RolloutLog(tmp_path, "actor") as actor:
        actor.record(Outcome.STARTED, ["g/0", "g/1"])
    with log_path(tmp_path, "actor").open("ab") as file:
        file.write(b'{"outcome":"failed","rollou')
    assert reconcile(tmp_path).torn_lines == 1
    with RolloutLog(tmp_path, "actor") as actor:
        actor.record(Outcome.FAILED, ["g/0"], "timeout")
    counts = reconcile(tmp_path)
    assert counts.adds_up and counts[Outcome.FAILED] == 1 and counts.torn_lines == 1


def test_records_are_read_incrementally(tmp_path: Path, actor: RolloutLog) -> None:
    accounting = RolloutAccounting(tmp_path)
    assert accounting.update().started == 0
    for i in range(5):
        actor.record(Outcome.STARTED, [f"g/{i}"])
        assert accounting.update().started == i + 1
    actor.record(Outcome.EMPTY, ["g/0"])
    assert accounting.update() == reconcile(tmp_path)


def test_a_run_of_ten_thousand_rollouts_reconciles_quickly(
    tmp_path: Path, actor: RolloutLog, trainer: RolloutLog
) -> None:
    for group in range(1250):
        batch = [rollout_id(f"group-{group}", i) for i in range(8)]
        actor.record(Outcome.STARTED, batch)
        trainer.record(Outcome.TRAINED, batch)
    start = time.process_time()
    assert reconcile(tmp_path)[Outcome.TRAINED] == 10_000
    # It takes about 20 ms; the bound only catches something quadratic.
    assert time.process_time() - start < 5


def test_an_unknown_outcome_is_refused(actor: RolloutLog) -> None:
    with pytest.raises(ValueError, match="lost"):
        actor.record("lost", ["g/0"])  # type: ignore[arg-type]


def test_a_resume_undoes_later_updates_and_tells_the_kept_from_the_discarded(
    tmp_path: Path, actor: RolloutLog, preprocess: RolloutLog, trainer: RolloutLog
) -> None:
    actor.record(Outcome.STARTED, [f"0-{i}/0" for i in range(10)])
    trainer.record(Outcome.TRAINED, ["0-0/0", "0-1/0"])
    end = log_size(tmp_path, "finetune")
    trainer.record(Outcome.TRAINED, ["0-2/0", "0-3/0"])
    trainer.record(Outcome.STALE, ["0-4/0"], "max_lag")
    preprocess.record(Outcome.FILTERED, ["0-5/0"], "zero_advantage")
    assert trainer.undo_after(end) == 3
    assert trainer.undo_after(end) == 0, "they are undone already"
    actor.record(Outcome.RESUMED)
    preprocess.record(Outcome.REPLAYED, ["0-2/0", "0-6/0"])
    counts = reconcile(tmp_path)
    assert counts.adds_up and counts[Outcome.TRAINED] == 2 and counts[Outcome.STALE] == 0
    assert (counts.resumes, counts.undone, counts.replayed) == (1, 3, 2)
    assert (counts.unfinished, counts.discarded) == (7, 5)
    actor.record(Outcome.STARTED, ["1-0/0"])
    trainer.record(Outcome.TRAINED, ["0-2/0", "1-0/0"])
    counts = reconcile(tmp_path)
    assert counts.adds_up and counts[Outcome.TRAINED] == 4 and counts.discarded == 5
    (line,) = [line for line in counts.lines() if line.startswith("resumed")]
    assert line == (
        "resumed once: 3 rollouts trained after a checkpoint undone, 2 kept over the last resume, 5 discarded"
    )
    assert not any(line.startswith("resumed") for line in reconcile(tmp_path / "other").lines())


ROLLOUTS = [rollout_id("0-000001", index) for index in range(4)]
by_role = st.lists(
    st.one_of(
        st.tuples(st.just("preprocess"), st.sampled_from([Outcome.STALE, Outcome.FILTERED])),
        st.tuples(st.just("finetune"), st.sampled_from([Outcome.TRAINED, Outcome.STALE, Outcome.FILTERED])),
        st.tuples(st.just("finetune"), st.sampled_from([Outcome.UNDONE])),
    ).flatmap(lambda entry: st.tuples(st.just(entry), st.sets(st.sampled_from(ROLLOUTS)))),
    max_size=12,
)


@given(by_role)
@settings(max_examples=40)
def test_ends_and_what_is_rolled_back_add_up_alike_in_whatever_order_they_are_read(
    history: list[tuple[tuple[str, Outcome], set[str]]],
) -> None:
    """Read line by line, as they are recorded, and each role's file as a whole at the end."""
    with tempfile.TemporaryDirectory() as folder:
        recorded = {role: RolloutLog(Path(folder), role) for role in ROLES}
        recorded["actor"].record(Outcome.STARTED, ROLLOUTS)
        live = RolloutAccounting(Path(folder))
        for (role, outcome), names_of in history:
            recorded[role].record(outcome, sorted(names_of), f"of {role}")
            live.update()
        for log in recorded.values():
            log.close()
        assert live.update() == reconcile(Path(folder))


def test_a_rollback_takes_nothing_from_what_preprocess_recorded(
    tmp_path: Path, actor: RolloutLog, preprocess: RolloutLog, trainer: RolloutLog
) -> None:
    """One text too old for a first start; a second one trained the other, and its update was undone."""
    actor.record(Outcome.STARTED, ["0-1/0"])
    live = RolloutAccounting(tmp_path)
    preprocess.record(Outcome.STALE, ["0-1/0"], "max_lag_in_queue")
    trainer.record(Outcome.TRAINED, ["0-1/0"])
    assert live.update()[Outcome.TRAINED] == 1
    assert trainer.undo_after(0) == 1
    for counts in (live.update(), reconcile(tmp_path)):
        assert counts.reasons == {Outcome.STALE: {"max_lag_in_queue": 1}} and counts.unfinished == 0


def test_a_rollback_leaves_the_ends_of_the_checkpoint(
    tmp_path: Path, actor: RolloutLog, trainer: RolloutLog
) -> None:
    """Rollouts of several texts, some of which were trained before the checkpoint and some after it."""
    actor.record(Outcome.STARTED, [f"0-1/{i}" for i in range(4)])
    trainer.record(Outcome.TRAINED, ["0-1/0"])
    trainer.record(Outcome.FILTERED, ["0-1/1"], "no_weight")
    end = log_size(tmp_path, "finetune")
    trainer.record(Outcome.TRAINED, ["0-1/0", "0-1/1", "0-1/2"])
    assert trainer.undo_after(end) == 2, "an update before the checkpoint reached the first one"
    counts = reconcile(tmp_path)
    assert (counts[Outcome.TRAINED], counts[Outcome.FILTERED], counts.unfinished) == (1, 1, 2)
    assert counts.undone == 2 and counts.reasons == {Outcome.FILTERED: {"no_weight": 1}}
    size = log_size(tmp_path, "finetune")
    assert trainer.undo_after(end) == 0 and log_size(tmp_path, "finetune") == size


def test_a_start_that_is_killed_within_a_rollback_leaves_it_to_the_next(
    tmp_path: Path, actor: RolloutLog, trainer: RolloutLog
) -> None:
    actor.record(Outcome.STARTED, ["0-1/0"])
    trainer.record(Outcome.FILTERED, ["0-1/0"], "no_weight")
    end = log_size(tmp_path, "finetune")
    trainer.record(Outcome.TRAINED, ["0-1/0"])
    trainer.record(Outcome.UNDONE, ["0-1/0"])  # killed behind this line
    assert reconcile(tmp_path).unfinished == 1
    trainer.undo_after(end)
    assert reconcile(tmp_path)[Outcome.FILTERED] == 1


def test_a_file_that_was_never_made_was_not_removed(tmp_path: Path, actor: RolloutLog) -> None:
    """A trainer that cannot load its model ends before it makes its file; one that trained had made it."""
    actor.record(Outcome.STARTED, ["a/0"])
    metrics = tmp_path / "finetune/metrics.jsonl"
    metrics.parent.mkdir()
    for text, named in (("", False), ('{"stats/samples": 8}\n', True)):
        metrics.write_text(text)
        assert ("removed" in "".join(reconcile(tmp_path).lines())) == named
