"""Settings of the domain: the block `reasoning_gym` of a run's configuration, read by every rollout."""

from typing import Literal

from omegaconf import DictConfig
from pydantic import Field

from domains.blocks import Block, block_of
from domains.reasoning_gym.answers import AnswerFormat

KEY = "reasoning_gym"


class ReasoningGymSettings(Block):
    """How a completion becomes a reward."""

    answer_format: AnswerFormat = "auto"
    """Which part of a completion is scored."""
    reward: Literal["verifier", "gold"] = "verifier"
    """Source of the signal; `gold` trains on the families' own answers (with policy_loss=sft)."""
    partial_credit: bool = True
    """The reward is the family's score, which may lie between 0 and 1; false: 1 for right answers only."""
    workers: int = Field(1, ge=1)
    """Scoring processes of each actor worker."""
    deadline_s: float = Field(10.0, gt=0)
    """Of one verdict; making the question again is part of it."""
    memory_mb: int = Field(2048, ge=256)
    """Address space of a scoring process, in MiB."""


def settings_of(cfg: DictConfig) -> ReasoningGymSettings:
    """The block of a run's tree. Raises ValueError with one line."""
    return block_of(cfg, KEY, ReasoningGymSettings)
