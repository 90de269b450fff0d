"""The outcome of a finished rollout: which hops are right, and what the whole is worth. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from domains.privacy_hopqa.agent.episode import Episode
from domains.privacy_hopqa.data.judge import Judge
from domains.privacy_hopqa.reward.rewards import outcome_reward
from domains.privacy_hopqa.settings import PrivacyHopQASettings


@dataclass(frozen=True, slots=True)
class Outcome:
    """Per hop: `correct`, and `blocked` if an answer it depends on is not correct."""

    correct: tuple[bool, ...]
    blocked: tuple[bool, ...]
    final_correct: bool
    reward: float

    @property
    def strict_success(self) -> bool:
        """All hops and the final answer correct."""
        return all(self.correct) and self.final_correct

    @property
    def prefix(self) -> int:
        """Length of the leading run of correct, unblocked hops."""
        for index, (correct, blocked) in enumerate(zip(self.correct, self.blocked)):
            if not correct or blocked:
                return index
        return len(self.correct)

    @property
    def first_incorrect_hop(self) -> int | None:
        """Number of the first hop that is not correct."""
        return next((number for number, correct in enumerate(self.correct, 1) if not correct), None)


def judge_outcome(episode: Episode, judge: Judge, settings: PrivacyHopQASettings) -> Outcome:
    """Compare the answers of a finished rollout with the accepted ones."""
    correct = tuple(judge.correct(hop.hop_number, hop.answer) for hop in episode.hops)
    blocked = tuple(not all(correct[number - 1] for number in hop.dependencies) for hop in episode.chain.hops)
    return Outcome(
        correct=correct,
        blocked=blocked,
        final_correct=judge.final_correct(episode.final_answer),
        reward=outcome_reward(list(correct), settings.reward_mode, episode.fatal is not None),
    )
