"""Settings of the domain: the block `verifiers` of a run's configuration, read by every rollout."""

from typing import Any

from omegaconf import DictConfig
from pydantic import Field

from domains.blocks import Block, block_of

KEY = "verifiers"


class VerifiersSettings(Block):
    """How the model is shown to an environment, and what counts as success."""

    renderer: str | dict[str, Any] | None = None
    """What writes this model's chats: a name of the package `renderers`, such as `qwen3` or `llama-3`, or a
    mapping with a name and options. Null: the model's own chat template, without tools."""
    success_at: float = 1.0
    """Reward from which an episode counts as a success."""
    override: bool = False
    """Sampling that an environment asks for is replaced by the run's; false: refused."""
    deadline_s: float = Field(1800.0, gt=0)
    """Of one episode."""


def settings_of(cfg: DictConfig) -> VerifiersSettings:
    """The block of a run's tree. Raises ValueError with one line."""
    return block_of(cfg, KEY, VerifiersSettings)
