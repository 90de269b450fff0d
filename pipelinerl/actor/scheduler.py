"""Which rollout starts next, and what becomes of it when it ends. Asked by the actor's loop in `run.py`.

Everything that starts leaves exactly once: a training rollout is published with its whole group, failed or
empty; an evaluation rollout is recorded in its pass. Decisions depend on values that come in; accounting and
publication are injected, so a test needs no process or clock.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipelinerl.actor.budget import LagBudget
from pipelinerl.actor.difficulty import scale_penalties
from pipelinerl.actor.evaluation import EvaluationPass
from pipelinerl.actor.failures import NO_TEXT, FailureMonitor, is_lost
from pipelinerl.actor.groups import Group, GroupTable, Start
from pipelinerl.actor.known_rates import Draw, measured_rate
from pipelinerl.actor.messages import Assignment, Ending, FinishedRollout
from pipelinerl.actor.problems import Problem, payload
from pipelinerl.actor.sampler import ProblemSampler, derived_seed
from pipelinerl.config import Config
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.run_state.accounting import Outcome, RolloutLog


class RunFailed(Exception):
    """The run cannot go on; the message is the one line that people see."""


@dataclass
class Effects:
    """What the scheduler causes outside."""

    publish: Callable[[Group, list[Sample]], None]
    """The samples of a whole group, in the order to write them."""
    can_publish: Callable[[], bool]
    finished_group: Callable[[Group], None]
    """Every complete training group, published or not."""
    finished_evaluation: Callable[[EvaluationPass], None]


class Scheduler:
    """Training groups within the lag budget, and evaluation passes between them."""

    def __init__(
        self,
        cfg: Config,
        run: str,
        train: Sequence[Problem],
        test: Sequence[Problem],
        table: GroupTable,
        budget: LagBudget,
        accounting: RolloutLog,
        effects: Effects,
        version: int,
    ):
        """`run` is the prefix of group ids, another one for each start of the actor in one folder."""
        self.cfg, self.run_id, self.table, self.budget = cfg, run, table, budget
        self.accounting, self.effects = accounting, effects
        by_difficulty = cfg.actor.difficulty if cfg.actor.sampling == "difficulty" else None
        self.sampler = ProblemSampler(train, cfg.seed, cfg.actor.domain_mix, by_difficulty)
        self.failures = FailureMonitor(cfg.actor.max_failed_fraction)
        self.test = test
        self.last_evaluated: int | None = None
        """Version of the last complete pass over the test problems."""
        self.version, self.discarded, self.processed = version, 0, 0
        self.total_texts = cfg.total_texts()
        """No further group starts when so many are trained; a resume counts from its checkpoint."""
        self._on_error = cfg.actor.on_rollout_error
        self.training_done = False
        self.groups_opened = 0
        self.groups_finished = 0
        self.published_texts = 0
        self.running_pass: EvaluationPass | None = None
        self._again: deque[tuple[int, Draw]] = deque()
        self._next_test_problem = 0

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on from; training groups under way are made anew."""
        # Numbers and problems only: a group is made anew as a whole, since what runs dies with its process.
        groups = (group for group in self.table.groups.values() if group.training)
        under_way = [*((group.number, Draw(group.problem, group.weight)) for group in groups), *self._again]
        return {
            "sampler": self.sampler.state_dict(),
            "evaluation": {"last": self.last_evaluated},
            "groups_opened": self.groups_opened,
            "under_way": [
                (number, *(draw if self.sampler.difficulty else draw[:1])) for number, draw in under_way
            ],
            "recent_texts": list(self.budget.recent),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Call before the first rollout. The budget takes its part when it is made.

        Raises ValueError where a problem of a group that was under way is gone.
        """
        self.sampler.load_state_dict(state["sampler"])
        self.last_evaluated = state["evaluation"]["last"]
        # What is made anew keeps its number and counts here already, so no number is given to two problems.
        self.groups_opened = int(state["groups_opened"])
        self._again = deque(
            (int(number), Draw(int(problem), *map(float, weight)))
            for number, problem, *weight in state["under_way"]
        )
        known = len(self.sampler.problems)
        largest = max((draw.problem for _, draw in self._again), default=-1)  # an evaluation has none
        if largest >= known:
            raise ValueError(
                f"the run has a group of problem {largest} under way, and there are {known} problems now; "
                "give train_dataset_names and train_subset as before, or train anew with force_restart=true"
            )

    def observe(self, version: int, discarded: int, processed: int) -> None:
        """Take in what the trainer announced; all three never decrease."""
        self.version, self.discarded, self.processed = version, discarded, processed

    def finish_training(self) -> list[Start]:
        """Training is over: drop its groups. Returns rollouts to cancel, which stay unfinished."""
        self.training_done = True
        return self.table.cancel_training()

    @property
    def done(self) -> bool:
        """Nothing runs and nothing is left to do."""
        return (
            self.training_done
            and self.running_pass is None
            and not self.table.active
            and not self._evaluation_due()
        )

    @property
    def waits_for_trainer(self) -> bool:
        """Nothing runs, because the next step is the trainer's."""
        return not self.training_done and not self.table.active

    def name_straggler(self, now: float) -> str | None:
        """A line, once, on a rollout of an evaluation that may never end; training goes on beside it.

        `now` in seconds since 1970. Such a rollout still ends by itself or at its deadline, and the next
        pass, or the end of the run, comes behind it.
        """
        current, oldest = self.running_pass, self.table.oldest_evaluation
        if current is None or oldest is None:
            return None
        told = not (current.end_holds if self.training_done else current.holds)
        all_started = self._next_test_problem >= current.problems
        age_s = now - oldest.at
        if told or not all_started or age_s <= current.patience_s:
            return None
        current.holds = False
        current.end_holds = not self.training_done
        what = "the run ends behind it" if self.training_done else "training goes on beside it"
        return (
            f"evaluation rollout {oldest.name} has run for {age_s:.0f} s, and {len(current.rollouts)} of "
            f"{current.problems} are done: {what}; it ends at "
            f"actor.rollout_deadline_s={self.cfg.actor.rollout_deadline_s:g}"
        )

    def next_assignment(self) -> tuple[Start, Assignment] | None:
        """Start one rollout, if there is a slot and something may start."""
        if self.table.slots.least_active() is None:
            return None
        if not self.table.has_waiting and not self._open_next():
            return None
        start = self.table.start_next()
        if start is None:
            return None
        group = start.group
        self.accounting.record(
            Outcome.STARTED if group.training else Outcome.EVAL_STARTED, [f"{group.id}/{start.rollout_index}"]
        )
        assignment = Assignment(
            start.key,
            group.id,
            start.rollout_index,
            group.payload,
            start.engine,
            group.training,
            self._seed_of(group, start.rollout_index),
            group.version,
        )
        return start, assignment

    def _seed_of(self, group: Group, rollout_index: int) -> int | None:
        if not group.training:
            return derived_seed(self.cfg.seed, "test", group.problem)
        if not self.cfg.staleness.synchronous:
            return None
        # A synchronous run can be repeated exactly, so its engines are told how to draw.
        return derived_seed(self.cfg.seed, "train", group.number, rollout_index)

    def _open_next(self) -> bool:
        """Open the next group, if any may start."""
        if self.running_pass is None and self._evaluation_due():
            self.running_pass = EvaluationPass(self.version, len(self.test), self.run_id)
            self._next_test_problem = 0
        if self.running_pass is not None:
            if self._open_test_problem(self.running_pass):
                return True
            # New training groups wait, so that the pass sees few versions; those that run go on.
            if self.running_pass.holds:
                return False
        enough = self.processed >= self.total_texts
        if self.training_done or enough or not self.effects.can_publish():
            return False
        # The one place where the bound on age holds rollouts back. It bounds what is expected; a rollout that
        # takes too long is caught by preprocess and, token by token, by the trainer.
        if not self.budget.admits(self.version, self.discarded):
            return False
        self._open_training_group()
        return True

    def _evaluation_due(self) -> bool:
        """At the first version, then every so many samples of training (0 never), and at the end."""
        last, every = self.last_evaluated, self.cfg.eval_every_n_versions
        if not self.test:
            return False
        if self.training_done:
            return self.cfg.eval_at_end and last != self.version
        # From the last pass and not in multiples: after a pass that took long the next is not due at once.
        return every > 0 and (last is None or self.version >= last + every)

    def _open_test_problem(self, current: EvaluationPass) -> bool:
        number = self._next_test_problem
        if number >= current.problems:
            return False
        self._next_test_problem += 1
        id_ = f"{self.run_id}-eval{current.version}-{number}"
        pickled = payload(self.test[number], number)
        self.table.open(Group(id_, number, number, pickled, 1, False, self.version))
        return True

    def _open_training_group(self) -> None:
        if self._again:  # a resumed run first makes anew what was under way, under the same numbers
            number, (problem, weight) = self._again.popleft()
        else:
            number, (problem, weight) = self.groups_opened, self.sampler.draw()
            self.groups_opened += 1
        pickled, attempts = payload(self.sampler.problems[problem], problem), self.cfg.attempts
        id_ = f"{self.run_id}-{number:06d}"
        self.table.open(Group(id_, number, problem, pickled, attempts, True, self.version, weight))
        self.budget.group_started(attempts)

    def finish(self, rollout: FinishedRollout) -> None:
        """Take in how a rollout ended. Raises RunFailed if the run must end."""
        start = self.table.finish(rollout)
        if start is None:  # it ended while its cancellation was on the way; it stays unfinished
            return
        if rollout.ending is Ending.NO_ENGINE:
            raise RunFailed(rollout.reason)
        name = f"{start.group.id}/{start.rollout_index}"
        failed = rollout.ending is Ending.FAILED
        for reason, tries in Counter(rollout.retried).items():
            self.accounting.record(Outcome.RETRIED, [name] * tries, reason)
        if start.group.training:
            self._finish_training_rollout(start, rollout, name)
        else:
            self._finish_test_rollout(start, rollout, name)
        # After it was counted: the run's accounting adds up also when this rollout is the one that ends it.
        empty = start.group.training and not failed and not rollout.samples
        self.failures.record(rollout.reason if failed else NO_TEXT if empty else None, rollout.key)
        if failed and self._on_error == "stop":
            raise RunFailed(f"rollout {name} failed (actor.on_rollout_error=stop): {rollout.reason}")
        if complaint := self.failures.complaint(self.table.running):
            raise RunFailed(complaint)

    def _finish_test_rollout(self, start: Start, rollout: FinishedRollout, name: str) -> None:
        if rollout.ending is Ending.FAILED:
            self.accounting.record(Outcome.EVAL_FAILED, [name], rollout.reason)
        else:
            self.accounting.record(Outcome.EVAL_DONE, [name])
            if rollout.samples:  # an evaluation that emits none says nothing about training
                self.budget.observe(len(rollout.samples))
        group, current = start.group, self.running_pass
        assert current is not None
        current.rollouts[group.problem] = rollout
        del self.table.groups[group.id]
        if rollout.samples:
            self.effects.publish(group, rollout.samples)
        if current.complete:
            self.last_evaluated = current.version
            self.running_pass = None
            self.effects.finished_evaluation(current)

    def _finish_training_rollout(self, start: Start, rollout: FinishedRollout, name: str) -> None:
        group = start.group
        self.budget.rollout_finished(len(rollout.samples))
        if rollout.ending is Ending.FAILED:
            self.accounting.record(Outcome.FAILED, [name], rollout.reason)
            if is_lost(group, self._on_error):
                # What will not start must not hold a place in the budget, or the run would wait for it.
                self.budget.rollouts_cancelled(self.table.cut_short(group))
        elif rollout.ending is Ending.EMPTY:
            self.accounting.record(Outcome.EMPTY, [name], "no_texts")
        if group.complete:
            self._close(group)

    def _close(self, group: Group) -> None:
        del self.table.groups[group.id]
        self.groups_finished += 1
        rollouts = list(group.finished.values())
        if self.cfg.actor.difficulty_aware_penalty.enabled:  # needs the solve rate, so the whole group
            scale_penalties(rollouts, self.cfg)
        lost = is_lost(group, self._on_error)
        count = sum(len(rollout.samples) for rollout in rollouts)
        self.budget.group_finished(count, 0 if lost else count)
        # Dropped ones too, or a domain that fails is drawn ever more.
        rate = measured_rate(rollouts, self.cfg.actor.difficulty.metric)
        self.sampler.record_completion(group.problem, rate)
        group.known = self.sampler.known(group.problem)
        self.effects.finished_group(group)
        if lost:
            # Its good rollouts go with it, for the reason of the first that failed.
            cause = next(rollout.reason for rollout in rollouts if rollout.ending is Ending.FAILED)
            done = [
                f"{group.id}/{i}" for i, rollout in group.finished.items() if rollout.ending is Ending.DONE
            ]
            self.accounting.record(Outcome.FAILED, done, f"group_discarded: {cause}")
        elif count:
            self.published_texts += count
            # Shuffled, because a step that has room for a part of the group takes its first rollouts.
            order = sorted(group.finished)
            random.Random(f"shuffle:{self.cfg.seed}:{group.number}").shuffle(order)
            self.effects.publish(group, [sample for i in order for sample in group.finished[i].samples])
