"""The lag budget over arbitrary schedules of announcements, filters and finishing rollouts."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pipelinerl.actor.budget import LagBudget
from pipelinerl.config.staleness import Staleness


def bound(max_lag: int | None, update: int) -> int | None:
    """What the launcher admits with updates of so many texts."""
    return Staleness(max_lag, update).admitted


class Pipeline:
    """An actor with this budget, a filter and a trainer, driven step by step."""

    def __init__(self, max_lag: int, step: int, attempts: int, texts: int):
        self.step, self.attempts, self.texts = step, attempts, texts
        self.budget = LagBudget(bound(max_lag, step), 0, [texts])
        self.version = self.discarded = self.ready = 0
        self.running = 0

    def start(self) -> int:
        started = 0
        while self.budget.admits(self.version, self.discarded):
            self.budget.group_started(self.attempts)
            self.running += 1
            started += 1
            assert started < 10_000
        return started

    def finish_group(self, kept: bool) -> None:
        if not self.running:
            return
        self.running -= 1
        size = self.attempts * self.texts
        for _ in range(self.attempts):
            self.budget.rollout_finished(self.texts)
        self.budget.group_finished(size, size)
        if kept:
            self.ready += size
        else:
            self.discarded += size

    def train(self) -> None:
        if self.ready >= self.step:
            self.ready -= self.step
            self.version += self.step


EVENTS = st.lists(st.sampled_from(["start", "keep", "filter", "train"]), max_size=200)


@settings(max_examples=150)
@given(st.integers(0, 40), st.integers(1, 16), st.integers(1, 6), st.integers(1, 5), EVENTS)
def test_overshoot_stays_below_one_group(max_lag, step, attempts, texts, events):
    pipeline = Pipeline(max_lag, step, attempts, texts)
    for event in events:
        if event == "start":
            pipeline.start()
        elif event == "train":
            pipeline.train()
        else:
            pipeline.finish_group(event == "keep")
        budget = pipeline.budget
        in_flight = budget.reserved - pipeline.version - pipeline.discarded
        assert in_flight < budget.bound + attempts * texts


@settings(max_examples=100)
@given(st.integers(0, 40), st.integers(1, 16), st.integers(1, 6), st.integers(1, 5), st.integers(0, 8))
def test_the_pipeline_never_starves(max_lag, step, attempts, texts, filtered):
    """Whatever is filtered first, the trainer gets its steps in the end."""
    pipeline = Pipeline(max_lag, step, attempts, texts)
    for turn in range(200):
        pipeline.start()
        while pipeline.running:
            pipeline.finish_group(kept=turn >= filtered)
        pipeline.train()
    assert pipeline.version > 0


@settings(max_examples=100)
@given(st.integers(0, 100), st.integers(1, 20), st.lists(st.integers(0, 30), max_size=20))
def test_admission_does_not_depend_on_how_versions_are_polled(max_lag, step, versions):
    """Two versions between two polls count twice: only the level matters."""
    seen_all, seen_last = LagBudget(bound(max_lag, step), 0, [1.0]), LagBudget(bound(max_lag, step), 0, [1.0])
    for budget in (seen_all, seen_last):
        budget.group_started(7)
    version = 0
    for more in versions:
        version += more
        seen_all.admits(version, 0)
    assert seen_all.admits(version, 0) == seen_last.admits(version, 0)


def test_filtered_texts_are_returned():
    budget = LagBudget(bound(0, 4), 0, [1.0])
    budget.group_started(4)
    assert not budget.admits(0, 0)
    for _ in range(4):
        budget.rollout_finished(1)
    budget.group_finished(4, 4)
    assert not budget.admits(0, 0)
    assert budget.admits(0, discarded=4)


def test_rollouts_without_texts_say_nothing_of_how_many_to_expect():
    """After a first group that failed whole the bound holds as it does before the first."""
    budget = LagBudget(bound(0, 4), 0)
    for _ in range(3):
        assert budget.admits(0, 0)
        budget.group_started(2)
        assert not budget.admits(0, 0), "one group is risked at a time"
        for _ in range(2):
            budget.rollout_finished(0)
        budget.group_finished(0, 0)
    budget.group_started(2)
    budget.rollout_finished(1)
    assert budget.admits(0, 0) and budget.texts_per_rollout == 1 / 7


def test_groups_that_are_risked_count_for_the_one_text_that_each_rollout_may_have():
    budget = LagBudget(bound(16, 8), 0)  # three updates of 8 texts
    budget.group_started(8)
    assert not budget.admits(0, 0)
    budget.risked_groups = 9
    for started in (16, 24):
        assert budget.admits(0, 0)
        budget.group_started(8)
        assert budget.running_rollouts == started
    assert not budget.admits(0, 0), "24 rollouts have 24 samples or more"
    budget.rollout_finished(2)
    assert not budget.admits(8, 0) and budget.reserved == 2 + 23 * 2, "what is known now decides"
    fresh = LagBudget(bound(None, 8), 0)
    fresh.group_started(8)
    assert fresh.admits(0, 0)


def test_the_bound_is_rounded_down_to_whole_updates():
    assert bound(13, 4) == 12 + 4
    assert bound(0, 4) == 4
    assert bound(None, 4) is None


def test_several_texts_per_rollout_are_reserved_before_they_exist():
    budget = LagBudget(bound(0, 64), 0)
    budget.group_started(8)
    assert not budget.admits(0, 0)  # nothing is known yet: one group at a time
    budget.rollout_finished(5)
    assert budget.reserved == 5 + 7 * 5
    assert budget.admits(0, 0)
    budget.group_started(8)
    assert not budget.admits(0, 0)


def test_a_discarded_group_gives_its_reservation_back():
    budget = LagBudget(bound(0, 8), 0, [2.0])
    budget.group_started(4)
    assert not budget.admits(0, 0)
    budget.rollout_finished(2)
    budget.rollout_finished(0)
    budget.rollouts_cancelled(2)
    budget.group_finished(2, published=0)
    assert budget.reserved == 0 and budget.admits(0, 0)


def test_a_resumed_budget_starts_at_the_restored_version():
    budget = LagBudget(bound(0, 4), 100, [1.0])
    assert budget.admits(100, 0)
    budget.group_started(4)
    assert not budget.admits(100, 0)


def test_texts_kept_over_a_resume_are_reserved_until_they_are_trained():
    budget = LagBudget(bound(0, 8), 100, [1.0], replayed=6)
    assert budget.reserved == 106 and budget.admits(100, 0)
    budget.group_started(2)
    assert not budget.admits(100, 0)
    assert budget.admits(100, 2), "two of them were dropped"
