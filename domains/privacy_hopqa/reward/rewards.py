"""Rewards: of a whole rollout by its outcome, of a single call by its situation. Pure functions.

The evaluation of a rollout calls `judge_outcome`, the choice of training texts `step_reward`. A situation is
what was known before a call, so that decisions are compared only with decisions that could have been theirs.
"""

from dataclasses import dataclass
from typing import Literal

from domains.privacy_hopqa.agent.episode import (
    GOLD_ABSENT,
    GOLD_ALREADY,
    GOLD_NOT_YET,
    CallRecord,
    ChooseFacts,
    Episode,
    PlanFacts,
)
from domains.privacy_hopqa.agent.interfaces import Stage
from domains.privacy_hopqa.data.judge import Judge
from domains.privacy_hopqa.settings import PrivacyHopQASettings

ERROR_REWARD = -1.0
GOLD_RETRIEVED = 1.0
STOPPED_RIGHTLY = 1.0
GOLD_SELECTED = 1.0

_STAGE_NAMES = {
    Stage.PLAN: "plan",
    Stage.CHOOSE: "doc_choose",
    Stage.READ: "read",
    Stage.RESOLVE: "resolve",
}
"""Stages as situations name them. `pipelinerl/situations.py` maps what they were called before."""


@dataclass(frozen=True, slots=True)
class ChainOutcome:
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
        good = [correct and not blocked for correct, blocked in zip(self.correct, self.blocked)]
        return [*good, False].index(False)

    @property
    def first_incorrect_hop(self) -> int | None:
        """Number of the first hop that is not correct."""
        return next((number for number, correct in enumerate(self.correct, 1) if not correct), None)


def judge_outcome(episode: Episode, judge: Judge, settings: PrivacyHopQASettings) -> ChainOutcome:
    """Compare the answers of a finished rollout with the accepted ones."""
    correct = tuple(judge.correct(hop.hop_number, hop.answer) for hop in episode.hops)
    blocked = tuple(not all(correct[number - 1] for number in hop.dependencies) for hop in episode.chain.hops)
    return ChainOutcome(
        correct=correct,
        blocked=blocked,
        final_correct=judge.final_correct(episode.final_answer),
        reward=outcome_reward(list(correct), settings.reward_mode, episode.fatal is not None),
    )


def outcome_reward(
    hops_correct: list[bool], mode: Literal["hop_accuracy", "all_hops_correct"], fatal: bool
) -> float:
    """Share of correct hops, or whether all are; 0 after a fatal stage error."""
    if fatal or not hops_correct:
        return 0.0
    if mode == "all_hops_correct":
        return float(all(hops_correct))
    return sum(hops_correct) / len(hops_correct)


@dataclass(frozen=True, slots=True)
class StepReward:
    """Reward of one call; weight 0 makes its text part of a baseline only."""

    value: float
    loss_weight: float = 1.0


def situation_label(record: CallRecord) -> str:
    """The label under which decisions are compared; it holds only what was known before the call."""
    stage = _STAGE_NAMES[record.stage]
    return f"privacy_hopqa:hop:{record.hop_number}:stage:{stage}:{record.situation}"


def step_reward(record: CallRecord, settings: PrivacyHopQASettings) -> StepReward | None:
    """Reward of a plan or choice before any privacy penalty; None for stages that are not rewarded.

    A call with a stage error gets -1 (or, with `zero_error_step_reward: false`, its situation's last row).
    """
    if record.stage not in (Stage.PLAN, Stage.CHOOSE):
        return None
    if record.error is not None:
        if settings.zero_error_step_reward:
            return StepReward(ERROR_REWARD)
        return StepReward(0.0, 0.0 if record.situation == GOLD_ABSENT else 1.0)
    match record.facts:
        case PlanFacts() as facts:
            untrained = record.situation == GOLD_ALREADY and not settings.train_stopping
            return StepReward(plan_reward(record.situation, facts, settings), 0.0 if untrained else 1.0)
        case ChooseFacts() as facts if record.situation != GOLD_ABSENT:
            return StepReward(GOLD_SELECTED if facts.gold_selected else 0.0)
        case ChooseFacts():
            return StepReward(0.0, 0.0)
    raise ValueError(f"call {record.index} ({record.stage}) has neither an error nor facts")


def plan_reward(situation: str, facts: PlanFacts, settings: PrivacyHopQASettings) -> float:
    """Reward of a plan that could be parsed. Only an explicitly empty array says that nothing is missing."""
    source_bonus = settings.hop_step_source_bonus if facts.right_source else 0.0
    if situation == GOLD_NOT_YET:
        return GOLD_RETRIEVED + settings.doc_bonus if facts.gold_retrieved else source_bonus
    if situation == GOLD_ALREADY:
        return STOPPED_RIGHTLY if facts.explicitly_empty else source_bonus
    raise ValueError(f"a plan has no situation {situation!r}")
