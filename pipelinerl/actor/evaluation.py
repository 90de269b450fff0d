"""One pass over the test problems, and what is recorded of it; the scheduler says when."""

from dataclasses import dataclass, field

from pipelinerl.actor.messages import Ending, FinishedRollout

STRAGGLER_S, STRAGGLER_TIMES = 60.0, 10.0
"""A rollout holds up training for so long, or for so many times the longest that ended of its pass."""
UNKNOWN_S = 600.0
"""While none has ended."""


@dataclass
class EvaluationPass:
    """Begun at `version`, the newest that was announced then."""

    version: int
    problems: int
    start: str = ""
    """The start of the run that made it; after a resume the same version may be evaluated again."""
    rollouts: dict[int, FinishedRollout] = field(default_factory=dict)
    """By problem, in any order."""

    holds: bool = True
    """Whether no training group starts until it is complete."""
    end_holds: bool = True
    """Whether it has not been said yet that the run's end waits for a rollout of it."""

    @property
    def complete(self) -> bool:
        return len(self.rollouts) == self.problems

    @property
    def patience_s(self) -> float:
        """For how long a rollout may hold up training."""
        longest_s = max((rollout.latency_s for rollout in self.rollouts.values()), default=None)
        return UNKNOWN_S if longest_s is None else max(STRAGGLER_S, STRAGGLER_TIMES * longest_s)

    def values(self) -> dict[str, list[float | None]]:
        """Each metric for each problem in order; None where the rollout failed or lacks the metric."""
        # A failed rollout keeps its place, so that passes can be compared problem by problem.
        ordered = [self.rollouts[problem] for problem in range(self.problems)]
        names = dict.fromkeys(name for rollout in self.rollouts.values() for name in rollout.metrics)
        return {name: [_scalar(rollout, name) for rollout in ordered] for name in names}

    def counts(self) -> dict[str, int]:
        endings = [rollout.ending for rollout in self.rollouts.values()]
        return {
            "problems": self.problems,
            "failed": endings.count(Ending.FAILED),
            "empty": endings.count(Ending.EMPTY),
        }


def _scalar(rollout: FinishedRollout, name: str) -> float | None:
    value = rollout.metrics.get(name)
    if isinstance(value, list):
        return sum(value) / len(value) if value else None
    return value
