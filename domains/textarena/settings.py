"""Settings of the domain: the block `textarena` of a run's configuration, read by every rollout."""

from omegaconf import DictConfig
from pydantic import Field

from domains.blocks import Block, block_of

KEY = "textarena"


class TextArenaSettings(Block):
    """How long a game may be."""

    max_turns: int = Field(60, ge=1)
    """Calls of the model in one game, of both seats together."""
    deadline_s: float = Field(600.0, gt=0)
    """Of one game, waiting for engines included."""


def settings_of(cfg: DictConfig) -> TextArenaSettings:
    """The block of a run's tree. Raises ValueError with one line."""
    return block_of(cfg, KEY, TextArenaSettings)
