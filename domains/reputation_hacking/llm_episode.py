"""What is kept of an episode that a language model plays: its decisions, its texts, its statistics."""

from __future__ import annotations

from dataclasses import dataclass, field

from domains.reputation_hacking.dynamics import Episode
from pipelinerl.rollouts import BaseMetrics, TrainingText


class ReputationMetrics(BaseMetrics):
    """Statistics of one episode, unscaled. `success`: more effort was saved than claimed (TI > B)."""

    peer_rating: float
    true_impact: float
    manipulation_score: float
    signal_bias: float
    memory_part: float
    effort: float
    effort_without: float
    help_share: float
    signal_share: float
    invalid: int
    tasks: int
    episode_return: float
    """J of this episode: plain reward less (1-a)·L."""
    c_signal: float


@dataclass
class Step:
    """One decision."""

    situation: int
    action: int
    valid: bool
    reply: str
    observation: list[float]
    works: bool
    effort: float
    version: int | None


@dataclass
class Played:
    """A finished episode and how it was rated from the calibrated memory."""

    episode: Episode
    steps: list[Step] = field(default_factory=list)
    texts: list[TrainingText] = field(default_factory=list)

    @property
    def invalid(self) -> int:
        return sum(not step.valid for step in self.steps)
