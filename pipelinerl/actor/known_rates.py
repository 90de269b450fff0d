"""Problems worth sampling (`actor.sampling=difficulty`): how often each is solved, and which is drawn for it.

A group of attempts that all succeed, or all fail, teaches nothing. So most draws go to problems that
are worth it: those whose rate of success lies in the band of `actor.difficulty`, and those that were
never drawn. The other draws walk through all problems, because a rate grows old while the policy learns:
every problem comes again within `2 * problems / uniform_share` draws. If few problems are worth it, more
draws walk through all. Without that bound most draws would repeat the last few, and find no others.
`sampler.py` draws, and the scheduler records what came of it.
"""

import math
import random
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipelinerl.actor.messages import FinishedRollout
from pipelinerl.config.roles import DifficultyConfig


class Draw(NamedTuple):
    """A problem that was drawn."""

    problem: int
    """Its index."""
    weight: float = 1.0
    """How many times as likely it was as in a uniform draw from the same problems."""


@dataclass(slots=True)
class Known:
    """What is known of a problem that was drawn before."""

    rate: float | None = None
    """Exponentially weighted mean over its groups; None before one was measured."""
    groups: int = 0
    """Measured groups."""

    def add(self, value: float, newest_weight: float) -> None:
        """Take in the mean of a group. The first groups weigh the same, as in a plain mean."""
        self.groups += 1
        before = self.rate if self.rate is not None else value
        self.rate = before + max(newest_weight, 1 / self.groups) * (value - before)


def measured_rate(rollouts: Iterable[FinishedRollout], metric: str) -> float | None:
    """Mean of a metric over the rollouts of a group that have it; None if none does, as where all failed."""
    values = []
    for rollout in rollouts:
        value = rollout.metrics.get(metric)
        of_rollout = value if isinstance(value, list) else [] if value is None else [value]
        if of_rollout and math.isfinite(mean := sum(of_rollout) / len(of_rollout)):
            values.append(mean)
    return sum(values) / len(values) if values else None


class DifficultySampler:
    """Draws from some of the problems: all of a run, or those of one domain."""

    def __init__(self, members: Sequence[int], seed: str, config: DifficultyConfig):
        """`members` are indices of problems, ascending; `seed` orders them in each pass."""
        self.members, self.config = members, config
        self.known: dict[int, Known] = {}
        """By problem, of those that were drawn."""
        self._seed = seed
        self._passed, self._owed = 0, 0.0
        """Draws that walked through all problems, and the part of the next one that is due."""
        self._worth = list(members)
        """Problems worth sampling, ascending: a resumed run has the same list, whatever happened before."""
        self._pass: tuple[int, list[int]] = -1, []
        """Number and order of the pass that uniform draws are in."""
        self._reset()

    def _reset(self) -> None:
        self._since, self._in_band, self._first = 0, 0, 0

    def draw(self, rng: random.Random) -> Draw:
        self._owed += self._uniform_share()
        # As shares add up and not by chance: only so is there a bound within which a problem comes again.
        if self._owed >= 1:
            self._owed -= 1
            problem = self._next_of_pass()
        else:
            problem = rng.choice(self._worth or self.members)
        weight = self._weight(problem)
        self._since += 1
        self._in_band += self.in_band(problem)
        if problem not in self.known:
            self._first += 1
            # Not worth more draws until its group is measured: one that always fails would be drawn for ever.
            self.known[problem] = Known()
            self._take_out(problem)
        return Draw(problem, weight)

    def _uniform_share(self) -> float:
        """Of the next draws: what is configured, or more, so that no problem's weight exceeds `most`."""
        share, most = self.config.uniform_share, self.config.most
        focused = len(self.members) / max(len(self._worth), 1)
        if not self._worth or focused <= most:
            return share
        return max(share, (focused - most) / (focused - 1))

    def _next_of_pass(self) -> int:
        number, place = divmod(self._passed, len(self.members))
        self._passed += 1
        if self._pass[0] != number:
            order = list(self.members)
            random.Random(f"{self._seed}:{number}").shuffle(order)
            self._pass = number, order
        return self._pass[1][place]

    def _weight(self, problem: int) -> float:
        if not self._worth:
            return 1.0
        share, focused = self._uniform_share(), len(self.members) / len(self._worth)
        return share + (1 - share) * focused * self._is_worth(problem)

    def _is_worth(self, problem: int) -> bool:
        return problem not in self.known or self.in_band(problem)

    def in_band(self, problem: int) -> bool:
        known = self.known.get(problem)
        return (
            known is not None
            and known.rate is not None
            and (self.config.low <= known.rate <= self.config.high)
        )

    def record(self, problem: int, value: float | None) -> None:
        """A group of the problem is complete; `value` is its `measured_rate`."""
        if value is None:
            return
        was = self._is_worth(problem)
        self.known.setdefault(problem, Known()).add(value, self.config.newest_weight)
        if self.in_band(problem) and not was:
            insort(self._worth, problem)
        elif was and not self.in_band(problem):
            self._take_out(problem)

    def _take_out(self, problem: int) -> None:
        del self._worth[bisect_left(self._worth, problem)]

    def take(self) -> tuple[int, int, int]:
        """Draws since the last call: all, of problems in the band, of problems never drawn before."""
        found = self._since, self._in_band, self._first
        self._reset()
        return found

    def state_dict(self) -> dict[str, Any]:
        known = [[problem, one.rate, one.groups] for problem, one in sorted(self.known.items())]
        return {"passed": self._passed, "owed": self._owed, "known": known}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Where the run has other problems now, which it remarks, rates go on by position as draws do."""
        self._passed, self._owed, here = int(state["passed"]), float(state["owed"]), set(self.members)
        self.known = {
            int(problem): Known(rate, int(groups))
            for problem, rate, groups in state["known"]
            if problem in here
        }
        self._worth = [problem for problem in self.members if self._is_worth(problem)]
