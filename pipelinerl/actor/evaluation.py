"""When the test problems are asked, and what is recorded of a pass."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelinerl.actor.messages import Ending, FinishedRollout


class EvaluationSchedule:
    """At the first version, then every `every` samples of training; 0 never. The last version on request."""

    def __init__(self, every: int, at_end: bool, problems: Sequence[dict[str, Any]]):
        """`every` in samples; `problems` are the test problems."""
        self.every, self.at_end, self.problems = every, at_end, problems
        self.last: int | None = None
        """Version of the last complete pass."""

    def due(self, version: int) -> bool:
        if not self.every or not self.problems:
            return False
        # From the last pass and not in multiples: after a pass that took long the next is not due at once.
        return self.last is None or version >= self.last + self.every

    def due_at_end(self, version: int) -> bool:
        return self.at_end and bool(self.problems) and self.last != version

    def state_dict(self) -> dict[str, Any]:
        return {"last": self.last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.last = None if state["last"] is None else int(state["last"])


@dataclass
class EvaluationPass:
    """One pass over the test problems, begun at `version`."""

    version: int
    problems: int
    rollouts: dict[int, FinishedRollout] = field(default_factory=dict)
    """By problem, in any order."""

    def add(self, problem: int, rollout: FinishedRollout) -> None:
        self.rollouts[problem] = rollout

    @property
    def complete(self) -> bool:
        return len(self.rollouts) == self.problems

    def values(self) -> dict[str, list[float | None]]:
        """Each metric for each problem in order; None where the rollout failed or lacks the metric."""
        names: dict[str, None] = {}
        for rollout in self.rollouts.values():
            names.update(dict.fromkeys(rollout.metrics))
        columns: dict[str, list[float | None]] = {name: [] for name in names}
        for problem in range(self.problems):
            rollout = self.rollouts[problem]
            for name, column in columns.items():
                column.append(_scalar(rollout, name))
        return columns

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
