"""Which groups a page shows of a run that holds too many: pure, from a few numbers of each group.

Whole groups, because attempts are compared. The first and the last versions whole as far as they fit, and
beside an even sample over the versions what people look for: rewards that differ most, the largest
advantages, the longest texts, the largest penalties, rollouts that failed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pipelinerl.extras.viewer.source import Evaluated

ENDS = 0.05
"""Share of the groups at either end of training that comes first."""


@dataclass(slots=True)
class GroupFacts:
    """One group as the selection sees it."""

    id: str
    order: int
    """When it was written, counted over the run."""
    version: int
    evaluated: Evaluated | None
    """Version and problem of an evaluation; None for training."""
    rollouts: int
    size: int
    """Estimated bytes on the page."""
    spread: float = 0.0
    """Largest less smallest reward of a text."""
    advantage: float = 0.0
    """Largest absolute advantage."""
    longest: int = 0
    """Tokens of its longest text."""
    penalty: float = 0.0
    """The lowest reward part, 0 where none is negative."""
    failed: int = 0
    """Rollouts that failed."""


@dataclass
class _Picked:
    """Groups that were taken so far."""

    limit: int
    max_bytes: int
    ids: set[str]
    rollouts: int = 0
    size: int = 0

    def take(self, groups: Iterable[GroupFacts], share: float) -> None:
        """Take groups in this order until they fill a share of the page, or the page is full."""
        rollouts, size = self.limit * share, self.max_bytes * share
        for group in groups:
            if group.id in self.ids:
                continue
            fits = self.rollouts + group.rollouts <= self.limit and self.size + group.size <= self.max_bytes
            if not fits or rollouts <= 0 or size <= 0:
                return
            self.ids.add(group.id)
            self.rollouts += group.rollouts
            self.size += group.size
            rollouts -= group.rollouts
            size -= group.size


def select(groups: Sequence[GroupFacts], limit: int, max_bytes: int) -> set[str]:
    """Ids of the groups to show: all of them if they are at most `limit` rollouts and `max_bytes`.

    If no group is as small as that, the smallest one.
    """
    if sum(g.rollouts for g in groups) <= limit and sum(g.size for g in groups) <= max_bytes:
        return {group.id for group in groups}
    picked = _Picked(limit, max_bytes, set())
    training = [group for group in groups if group.evaluated is None]
    picked.take(_evaluations([group for group in groups if group.evaluated is not None]), 0.3)
    edge = max(1, int(len(training) * ENDS))
    picked.take(training[:edge], 0.1)
    picked.take(training[-edge:][::-1], 0.1)
    extremes: tuple[Callable[[GroupFacts], float], ...] = (
        lambda group: group.spread,
        lambda group: group.advantage,
        lambda group: group.longest,
        lambda group: -group.penalty,
        lambda group: group.failed,
    )
    for value in extremes:
        picked.take(sorted((g for g in training if value(g)), key=value, reverse=True), 0.05)
    picked.take(evenly(training), 1.0)
    return picked.ids or {min(groups, key=lambda group: (group.size, group.order)).id}


def _evaluations(groups: Sequence[GroupFacts]) -> list[GroupFacts]:
    """The same problems of the first, the middle and the last version, problem by problem, then others."""
    versions = sorted({group.version for group in groups})
    shown = {versions[0], versions[len(versions) // 2], versions[-1]} if versions else set()
    problems = [group.evaluated.problem if group.evaluated else 0 for group in groups]
    order = sorted(
        zip(problems, groups), key=lambda one: (one[1].version not in shown, one[0], one[1].version)
    )
    return [group for _, group in order]


def evenly(groups: Sequence[GroupFacts]) -> list[GroupFacts]:
    """The groups so that every beginning of the list is spread over the whole: halves, quarters, eighths."""
    order, step, seen = list[int](), max(1, len(groups)), set[int]()
    while len(order) < len(groups):
        order += [at for at in range(step // 2, len(groups), step) if at not in seen]
        seen.update(order)
        if step == 1:
            order += [at for at in range(len(groups)) if at not in seen]
            seen.update(order)
        step = max(1, step // 2)
    return [groups[at] for at in order]
