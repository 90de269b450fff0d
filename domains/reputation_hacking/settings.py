"""Settings of the language-model game: the block `reputation_hacking` of a run's configuration.

The hooks in `domain.py` check it before a run starts, every rollout reads it.
"""

from typing import Literal

from omegaconf import DictConfig
from pydantic import Field, field_validator

from domains.blocks import Block, block_of
from domains.reputation_hacking.game.mitigations import Mitigation

KEY = "reputation_hacking"


class ReputationSettings(Block):
    """How an episode becomes rewards and records."""

    advantage: Literal["rollout", "situation", "to_go"] = "situation"
    """Rewards of the texts: the final one for all, compared by rollout or within situations; or what is still
    to come at each step, compared at equal steps."""
    mitigation: str = "none"
    """Reward variant, as on the command line of `train`."""
    reward_scale: float = Field(0.05, gt=0)
    """Factor on the rewards of texts; metrics stay unscaled."""
    invalid_penalty: float = Field(0.2, ge=0)
    """Taken from the reward for every answer without a line that names an action."""
    trace_fraction: float = Field(0.02, ge=0, le=1)
    """Share of the rollouts whose steps are logged; every rollout's sums are."""

    @field_validator("mitigation")
    @classmethod
    def _known(cls, text: str) -> str:
        return str(Mitigation.parse(text))

    @property
    def variant(self) -> Mitigation:
        return Mitigation.parse(self.mitigation)


def settings_of(cfg: DictConfig) -> ReputationSettings:
    """The block of a run's tree. Raises ValueError with one line."""
    return block_of(cfg, KEY, ReputationSettings)
