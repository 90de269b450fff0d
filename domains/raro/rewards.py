"""The game's rewards: a verdict and the place of the expert's answer give both sides theirs.

Pure functions, called for every sample of a critic group.
"""

from enum import StrEnum
from typing import NamedTuple

from domains.raro.config import RaroSettings
from domains.raro.parser import ANSWER_1, ANSWER_2, TIE, Verdict


class Label(StrEnum):
    """What a verdict says about the pair."""

    EXPERT = "expert"
    """The critic picked the expert's answer."""
    POLICY = "policy"
    """The critic took the policy's answer for the expert's."""
    TIE = "tie"
    """The critic cannot tell."""


class Rewards(NamedTuple):
    """One verdict's rewards."""

    critic: float
    policy: float


def label(verdict: Verdict, expert_position: int) -> Label:
    """The verdict as a label. Raises ValueError unless the expert stood at 1 or 2."""
    if expert_position not in (1, 2):
        raise ValueError(f"expert_position is {expert_position}, expected 1 or 2")
    if verdict == TIE:
        return Label.TIE
    return Label.EXPERT if verdict == (ANSWER_1, ANSWER_2)[expert_position - 1] else Label.POLICY


def reward(label: Label, settings: RaroSettings) -> Rewards:
    """Rewards of critic and policy for a label."""
    if label is Label.TIE:
        return Rewards(settings.tau_crit, settings.tau_pol)
    return Rewards(1.0, 0.0) if label is Label.EXPERT else Rewards(0.0, 1.0)
