"""Settings of the domain: the block `logic` of a run's configuration, read by every rollout."""

from omegaconf import DictConfig
from pydantic import Field

from domains.blocks import Block, block_of
from domains.reasoning_gym.answers import AnswerFormat

KEY = "logic"


class LogicSettings(Block):
    """How a generated puzzle is judged."""

    answer_format: AnswerFormat = "auto"
    """Which part of a completion is scored, as in `reasoning_gym`."""
    workers: int = Field(1, ge=1)
    """Scoring processes of each actor worker."""
    deadline_s: float = Field(10.0, gt=0)
    """Of one verdict."""
    memory_mb: int = Field(2048, ge=256)
    """Address space of a scoring process, in MiB."""


def settings_of(cfg: DictConfig) -> LogicSettings:
    """The block of a run's tree. Raises ValueError with one line."""
    return block_of(cfg, KEY, LogicSettings)
