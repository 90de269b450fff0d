"""Scheduling against a fake engine: whole groups, failures, evaluation, exact accounting."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelinerl.actor.budget import LagBudget
from pipelinerl.actor.groups import GroupTable, Slots
from pipelinerl.actor.messages import Ending, FinishedRollout
from pipelinerl.actor.reporting import measured
from pipelinerl.actor.sampler import ProblemSampler
from pipelinerl.actor.scheduler import Effects, RunFailed, Scheduler
from pipelinerl.config import Config
from pipelinerl.finetune.rl.sample import samples_of
from pipelinerl.rollouts import RolloutOrigin
from pipelinerl.run_state.accounting import Outcome, RolloutLog, reconcile
from tests.support.toy_domain import text


class World:
    """A scheduler whose rollouts end when and how the test says."""

    def __init__(
        self, folder, *, attempts=4, on_error="drop_rollout", max_lag=None, tests=0, engines=2, **more
    ):
        self.published, self.finished_groups, self.passes = [], [], []
        self.running = {}
        self.accounting = RolloutLog(folder, "actor")
        self.folder = folder
        self.table = GroupTable(
            Slots([f"e{i}" for i in range(engines)], more.get("per_engine", 4), workers=2)
        )
        cfg = Config.model_validate(
            {
                "attempts": attempts,
                "seed": 1,
                "eval_every_n_versions": more.get("every", 0),
                "eval_at_end": more.get("at_end", False),
                "actor": {
                    "on_rollout_error": on_error,
                    "max_failed_fraction": more.get("max_failed", 1.0),
                    **more.get("actor", {}),
                },
                "finetune": {"max_train_steps": more.get("steps", 10**9)},
                "derived": {"trainer_ranks": 1, "texts_per_step": 4, "texts_per_update": 4},
            }
        )
        effects = Effects(
            publish=lambda group, samples: self.published.append((group, samples)),
            can_publish=lambda: True,
            finished_group=self.finished_groups.append,
            finished_evaluation=self.passes.append,
        )
        problems = [{"id": i} for i in range(5)]
        budget = LagBudget(None if max_lag is None else (max_lag // 4 + 1) * 4, 0, [1.0])
        self.scheduler = Scheduler(
            cfg, "0", problems, [{}] * tests, self.table, budget, self.accounting, effects, 0
        )

    def start_all(self):
        started = []
        while (pair := self.scheduler.next_assignment()) is not None:
            start, assignment = pair
            self.running[start.key] = start
            started.append(assignment)
        return started

    def end(self, key, ending=Ending.DONE, texts=1, reason="", latency_s=0.0):
        start = self.running.pop(key)
        origin = RolloutOrigin(start.group.id, start.rollout_index, 0, start.group.training)
        samples = samples_of([text() for _ in range(texts)], origin) if ending is Ending.DONE else []
        metrics = {"reward": float(start.group.problem)} if ending is Ending.DONE else {}
        self.scheduler.finish(
            FinishedRollout(
                key=key, ending=ending, reason=reason, samples=samples, metrics=metrics, latency_s=latency_s
            )
        )

    def end_all(self, ending=Ending.DONE, reason=""):
        for key in sorted(self.running):
            self.end(key, ending, reason=reason)


def test_a_run_that_was_resumed_with_smaller_steps_starts_groups(tmp_path):
    """2,048 texts in 8 steps are more than 12 steps of 128 have, but four of them are still to come."""
    world = World(tmp_path, steps=12)
    cfg = world.scheduler.cfg.model_copy(
        update={"derived_": world.scheduler.cfg.derived.model_copy(update={"texts_per_step": 128})}
    )
    world.scheduler.total_texts = cfg.total_texts(step=8, texts=2048)
    for processed, starts in ((2048, True), (2048 + 4 * 128 - 1, True), (2048 + 4 * 128, False)):
        world.scheduler.observe(0, 0, processed)
        assert bool(world.start_all()) is starts
        world.end_all()


def test_a_run_whose_rollouts_have_no_text_ends_with_one_line(tmp_path):
    """Nothing can be learnt from them, and a run would make them for ever."""
    world = World(tmp_path, max_failed=0.5)
    with pytest.raises(RunFailed, match=r"failed or had no sample.*training_texts .* is empty") as told:
        for _ in range(100):
            world.start_all()
            for key in sorted(world.running):
                world.end(key, texts=0)
    assert "\n" not in str(told.value)


def test_groups_are_published_whole_and_engines_are_filled_evenly(tmp_path):
    world = World(tmp_path)
    started = world.start_all()
    assert world.table.slots.engines == {"e0": 4, "e1": 4}
    assert world.table.slots.workers == [4, 4]
    assert [a.rollout_index for a in started] == [0, 1, 2, 3] * 2
    first = [key for key, start in world.running.items() if start.group.id == "0-000000"]
    for key in first[:3]:
        world.end(key)
    assert not world.published
    world.end(first[3])
    ((group, samples),) = world.published
    assert sorted(sample.name for sample in samples) == [f"{group.id}/{i}/0" for i in range(4)]


def test_a_resume_with_fewer_problems_than_are_under_way_is_refused_in_one_line(tmp_path):
    world = World(tmp_path / "first")
    world.start_all()
    saved = world.scheduler.state_dict()
    other = World(tmp_path / "second")
    other.scheduler.sampler.problems = other.scheduler.sampler.problems[:1]
    saved["under_way"] = [(0, 3)]
    with pytest.raises(ValueError, match=r"problem 3 under way, and there are 1 problems now.*train_subset"):
        other.scheduler.load_state_dict(saved)


def test_an_evaluation_without_training_problems_is_resumed(tmp_path):
    saved = World(tmp_path / "first").scheduler.state_dict()
    other = World(tmp_path / "second")
    other.scheduler.sampler.problems = []
    other.scheduler.load_state_dict(saved)
    assert other.scheduler.state_dict()["under_way"] == []


def test_a_group_counts_for_the_domain_of_its_problem_whoever_ends_first(tmp_path):
    """A rollout that raised has told nobody its domain, and is the first to end."""
    world = World(tmp_path)
    problems = [{"id": i, "domain": "b"} for i in range(5)]
    world.scheduler.sampler = ProblemSampler(problems, 1, {"b": 1})
    world.start_all()
    first, *others = sorted(world.running)
    world.end(first, Ending.FAILED, reason="bug")
    for key in others:
        world.end(key)
    assert world.scheduler.sampler.mixture.completed == {"b": 2}


def test_rollouts_of_a_group_are_written_in_a_shuffled_order(tmp_path):
    world = World(tmp_path, attempts=8)
    orders = []
    for _ in range(4):
        world.start_all()
        world.end_all()
    for _, samples in world.published:
        orders.append([sample.rollout_index for sample in samples])
    assert any(order != sorted(order) for order in orders)
    assert len({tuple(order) for order in orders}) > 1


def test_a_resumed_scheduler_makes_what_was_under_way_anew_and_goes_on_as_the_other_would(tmp_path):
    world = World(tmp_path / "first")
    world.start_all()
    for key in [key for key, start in world.running.items() if start.group.number == 0]:
        world.end(key)
    saved = json.loads(json.dumps(world.scheduler.state_dict()))
    world.start_all()
    expected = {start.group.number: start.group.problem for start in world.running.values()}

    again = World(tmp_path / "second")
    again.scheduler.load_state_dict(saved)
    again.start_all()
    assert {start.group.number: start.group.problem for start in again.running.values()} == expected
    assert sorted(expected) == [1, 2] and saved["groups_opened"] == 2
    assert again.scheduler.state_dict()["sampler"] == world.scheduler.state_dict()["sampler"]


def test_a_second_resume_before_anything_ran_keeps_what_the_first_had_to_make_anew(tmp_path):
    world = World(tmp_path / "first")
    world.start_all()
    saved = world.scheduler.state_dict()
    again = World(tmp_path / "second")
    again.scheduler.load_state_dict(saved)
    assert again.scheduler.state_dict() == {**saved, "recent_texts": [1.0]}


BY_REWARD = {"sampling": "difficulty", "difficulty": {"metric": "reward", "low": 1.5, "high": 3.5}}
"""The reward is the problem's index, so problems 2 and 3 are in the band."""


def test_rates_of_problems_decide_what_is_drawn_and_go_into_the_record_and_the_snapshot(tmp_path):
    """Evaluation, whose problems have indices of their own, tells the sampler nothing."""
    world = World(tmp_path / "first", tests=5, every=10**6, actor=BY_REWARD)
    world.start_all()
    world.end_all()
    assert len(world.passes) == 1 and not world.scheduler.sampler.difficulty["all"].known
    for _ in range(60):
        world.start_all()
        world.end_all()
    late = [measured(group) for group in world.finished_groups[40:]]
    assert sum(record["problem"] in (2, 3) for record in late) / len(late) > 0.75
    for record in late:
        assert record["rate"] == record["problem"] and record["measured_groups"] >= 1
        # Twice at most, which leaves 5 - 2 * 2 for the other three; the uniform share alone would give 2.125.
        assert record["weight"] == pytest.approx(2 if record["problem"] in (2, 3) else 1 / 3)
    saved = json.loads(json.dumps(world.scheduler.state_dict()))
    expected = saved["sampler"]["difficulty"]["all"]["known"]
    assert [[problem, rate] for problem, rate, _ in expected] == [[i, float(i)] for i in range(5)]
    world.start_all()
    drawn = {
        start.group.number: (start.group.problem, start.group.weight) for start in world.running.values()
    }
    under_way = json.loads(json.dumps(world.scheduler.state_dict()))

    again = World(tmp_path / "second", actor=BY_REWARD)
    again.scheduler.load_state_dict(saved)
    again.start_all()
    assert drawn == {s.group.number: (s.group.problem, s.group.weight) for s in again.running.values()}
    third = World(tmp_path / "third", actor=BY_REWARD)
    third.scheduler.load_state_dict(under_way)
    kept = json.loads(json.dumps(third.scheduler.state_dict()))
    assert kept == {**under_way, "recent_texts": [1.0]}
    third.start_all()
    assert drawn == {s.group.number: (s.group.problem, s.group.weight) for s in third.running.values()}


def test_where_problems_are_drawn_alike_records_and_snapshots_have_nothing_more(tmp_path):
    world = World(tmp_path)
    world.start_all()
    assert [len(one) for one in world.scheduler.state_dict()["under_way"]] == [2, 2]
    world.end_all()
    assert measured(world.finished_groups[0]).keys() == {"group", "problem", "version", "rollouts"}
    assert world.scheduler.state_dict()["sampler"] == {"seed": 1, "drawn": 2}


def test_a_resume_may_begin_and_end_to_draw_by_difficulty(tmp_path):
    alike, by_rates = World(tmp_path / "first"), World(tmp_path / "second", actor=BY_REWARD)
    alike.start_all()
    by_rates.scheduler.load_state_dict(json.loads(json.dumps(alike.scheduler.state_dict())))
    by_rates.start_all()
    problems = {start.group.problem for start in by_rates.running.values()}
    by_rates.end_all()
    assert by_rates.scheduler.sampler.difficulty["all"].known.keys() == problems
    again = World(tmp_path / "third")
    again.scheduler.load_state_dict(json.loads(json.dumps(by_rates.scheduler.state_dict())))
    assert again.scheduler.state_dict()["sampler"] == {"seed": 1, "drawn": 2}


def test_an_engine_out_of_rotation_gets_no_rollout(tmp_path):
    world = World(tmp_path)
    world.table.slots.out = {"e0"}
    assert {a.engine for a in world.start_all()} == {"e1"}


def test_a_group_goes_on_while_two_rollouts_remain(tmp_path):
    world = World(tmp_path, attempts=4, engines=1)
    world.start_all()
    keys = sorted(world.running)
    for key in keys[:2]:
        world.end(key, Ending.FAILED, reason="bug")
    for key in keys[2:]:
        world.end(key)
    assert len(world.published[0][1]) == 2
    counts = reconcile(tmp_path)
    assert (counts.started, counts[Outcome.FAILED], counts.unfinished) == (4, 2, 2)


def test_tries_that_failed_before_a_rollout_was_done_are_in_the_accounting(tmp_path):
    world = World(tmp_path, attempts=2, engines=1)
    world.start_all()
    first, second = sorted(world.running)[:2]
    world.scheduler.finish(
        FinishedRollout(key=first, ending=Ending.FAILED, reason="bug", retried=["slow", "late"])
    )
    world.scheduler.finish(
        FinishedRollout(key=second, ending=Ending.FAILED, reason="slow", retried=["slow"] * 3)
    )
    counts = reconcile(tmp_path)
    assert counts.retried == {"slow": 4, "late": 1} and counts[Outcome.FAILED] == 2 and counts.adds_up


def test_a_group_with_one_rollout_left_is_discarded_and_counted(tmp_path):
    world = World(tmp_path, attempts=4, engines=1)
    world.start_all()
    keys = sorted(world.running)
    world.end(keys[0])
    for key in keys[1:]:
        world.end(key, Ending.FAILED, reason="bug")
    assert not world.published
    counts = reconcile(tmp_path)
    assert (counts.started, counts[Outcome.FAILED], counts.unfinished) == (4, 4, 0)
    assert counts.reasons[Outcome.FAILED] == {"bug": 3, "group_discarded: bug": 1}


def test_discard_group_starts_no_further_attempts(tmp_path):
    world = World(tmp_path, attempts=8, on_error="discard_group", engines=1)
    world.start_all()
    world.end(min(world.running), Ending.FAILED, reason="bug")
    assert world.start_all()[0].group_id == "0-000001"
    first = [key for key, start in world.running.items() if start.group.id == "0-000000"]
    for key in first:
        world.end(key)
    assert not world.published
    counts = reconcile(tmp_path)
    assert counts[Outcome.FAILED] == 4 and counts.adds_up


def test_stop_ends_the_run_with_the_reason(tmp_path):
    world = World(tmp_path, on_error="stop")
    world.start_all()
    with pytest.raises(RunFailed, match=r"on_rollout_error=stop.*bug"):
        world.end(0, Ending.FAILED, reason="bug")


def test_too_many_failures_end_the_run_with_the_commonest_reason(tmp_path):
    world = World(tmp_path, max_failed=0.5)
    with pytest.raises(RunFailed, match=r"max_failed_fraction=0.5.*\(.* times\): common"):
        for turn in range(20):
            world.start_all()
            world.end_all(Ending.FAILED, "rare" if turn == 0 else "common")


def test_no_engine_until_the_deadline_ends_the_run(tmp_path):
    world = World(tmp_path)
    world.start_all()
    with pytest.raises(RunFailed, match="nobody answers"):
        world.end(0, Ending.NO_ENGINE, reason="nobody answers")


def test_rollouts_without_texts_are_empty_and_their_group_is_not_published(tmp_path):
    world = World(tmp_path, engines=1)
    world.start_all()
    world.end_all(Ending.EMPTY)
    assert not world.published
    assert reconcile(tmp_path)[Outcome.EMPTY] == 4


def test_training_waits_for_an_evaluation_and_running_groups_finish(tmp_path):
    world = World(tmp_path, tests=6, every=100)
    started = world.start_all()
    assert [a.training for a in started] == [False] * 6
    for key in sorted(world.running)[:5]:
        world.end(key)
    assert world.start_all() == []
    world.end_all()
    assert len(world.passes) == 1 and world.passes[0].values() == {"reward": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]}
    assert all(a.training for a in world.start_all())
    world.end(min(world.running))
    world.scheduler.observe(100, 0, 100)
    assert not any(a.training for a in world.start_all())


def test_an_evaluation_rollout_that_does_not_end_holds_up_training_for_a_while_only(tmp_path):
    """The longest of the others took 9 s: nobody waits longer than ten times that."""
    world = World(tmp_path, tests=4, every=100)
    world.start_all()
    hanging = max(world.running)
    began = world.running[hanging].at
    assert world.scheduler.name_straggler(began + 590) is None, "none has ended yet"
    for key in sorted(world.running)[:3]:
        world.end(key, latency_s=9.0)
    assert world.scheduler.name_straggler(began + 89) is None and world.start_all() == []
    line = world.scheduler.name_straggler(began + 91)
    assert line is not None and "0-eval0-3/0 has run for 91 s, and 3 of 4 are done" in line
    assert "actor.rollout_deadline_s=3600" in line and "\n" not in line
    assert world.scheduler.name_straggler(began + 92) is None
    assert {a.training for a in world.start_all()} == {True}
    world.scheduler.observe(100, 0, 100)
    assert not world.passes, "the next pass waits for this one"
    world.end(hanging, Ending.FAILED, reason="deadline")
    assert world.passes[0].values() == {"reward": [0.0, 1.0, 2.0, None]}
    world.end_all()
    world.start_all()
    assert world.scheduler.running_pass is not None and world.scheduler.running_pass.version == 100


def test_an_evaluation_of_which_nothing_ends_holds_up_training_for_ten_minutes(tmp_path):
    world = World(tmp_path, tests=2, every=100)
    world.start_all()
    began = min(start.at for start in world.running.values())
    assert world.scheduler.name_straggler(began + 590) is None
    assert world.scheduler.name_straggler(began + 610) is not None


def test_a_rollout_that_holds_up_the_end_of_the_run_is_named_once(tmp_path):
    """Also one that training has gone on beside before, since another thing waits for it now."""
    world = World(tmp_path, tests=3, every=100)
    world.start_all()
    hanging = max(world.running)
    began = world.running[hanging].at
    for key in sorted(world.running)[:2]:
        world.end(key, latency_s=2.0)
    line = world.scheduler.name_straggler(began + 61)
    assert line is not None and "training goes on beside it" in line
    world.scheduler.finish_training()
    line = world.scheduler.name_straggler(began + 62)
    assert (
        line is not None and "0-eval0-2/0 has run for 62 s, and 2 of 3 are done: the run ends behind" in line
    )
    assert "actor.rollout_deadline_s=3600" in line
    assert world.scheduler.name_straggler(began + 63) is None and not world.scheduler.done
    world.end(hanging, Ending.FAILED, reason="deadline")
    assert world.scheduler.done and world.passes[0].values() == {"reward": [0.0, 1.0, None]}


def test_evaluation_values_keep_the_order_of_problems_and_mark_failures(tmp_path):
    world = World(tmp_path, tests=4, every=100)
    world.start_all()
    for key in sorted(world.running, reverse=True):
        failed = world.running[key].group.problem == 2
        if failed:
            start = world.running.pop(key)
            world.scheduler.finish(FinishedRollout(key=start.key, ending=Ending.FAILED, reason="bug"))
        else:
            world.end(key)
    (finished,) = world.passes
    assert finished.values() == {"reward": [0.0, 1.0, None, 3.0]}
    assert finished.counts() == {"problems": 4, "failed": 1, "empty": 0}
    counts = reconcile(tmp_path)
    assert (counts.eval_started, counts[Outcome.EVAL_FAILED], counts.eval_unfinished) == (4, 1, 0)


def test_the_last_version_is_evaluated_after_training_and_then_all_is_done(tmp_path):
    world = World(tmp_path, tests=2, every=100, at_end=True)
    world.start_all()
    world.end_all()
    world.start_all()
    world.scheduler.observe(8, 0, 8)
    cancelled = world.scheduler.finish_training()
    assert len(cancelled) == len(world.running) and not world.table.active
    world.running.clear()
    assert not world.scheduler.done
    assert len(world.start_all()) == 2
    world.end_all()
    assert [p.version for p in world.passes] == [0, 8]
    assert world.scheduler.done and world.start_all() == []


def test_nothing_starts_once_the_trainer_has_its_texts(tmp_path):
    world = World(tmp_path, steps=4)
    world.scheduler.observe(16, 0, 16)
    assert world.start_all() == []


def test_the_lag_budget_holds_training_back(tmp_path):
    world = World(tmp_path, max_lag=0)
    assert len(world.start_all()) == 4
    world.end_all()
    assert world.start_all() == []
    assert world.scheduler.waits_for_trainer
    world.scheduler.observe(0, 4, 0)
    assert len(world.start_all()) == 4


ENDINGS = st.sampled_from([Ending.DONE, Ending.DONE, Ending.FAILED, Ending.EMPTY])


@settings(max_examples=60)
@given(
    st.sampled_from(["drop_rollout", "discard_group"]),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 7), ENDINGS), max_size=120),
)
def test_every_rollout_that_starts_ends_in_exactly_one_way(tmp_path_factory, on_error, attempts, script):
    folder = tmp_path_factory.mktemp("run")
    world = World(folder, attempts=attempts, on_error=on_error, tests=2, every=50)
    for choice, ending in script:
        world.start_all()
        key = sorted(world.running)[choice % len(world.running)]
        world.end(key, ending, reason="bug")
        world.scheduler.observe(world.scheduler.version + 1, 0, 0)
    counts = reconcile(folder)
    published = sum(len(samples) for group, samples in world.published if group.training)
    open_done = sum(
        outcome.ending is Ending.DONE
        for group in world.table.groups.values()
        for outcome in group.finished.values()
    )
    training_running = sum(start.group.training for start in world.running.values())
    assert counts.adds_up
    assert counts.unfinished == published + open_done + training_running
    budget = world.scheduler.budget
    waiting = sum(group.waiting for group in world.table.groups.values() if group.training)
    assert budget.running_rollouts == training_running + waiting
    assert sum(world.table.slots.engines.values()) == len(world.running)
