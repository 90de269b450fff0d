"""Settings of the language-model game: the block `reputation_hacking` of a run's configuration."""

from __future__ import annotations

from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from domains.reputation_hacking.game.mitigations import NONE, Mitigation

KEY = "reputation_hacking"


class ReputationSettings(BaseModel):
    """How an episode becomes rewards and records."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    advantage: Literal["rollout", "situation", "to_go"] = "situation"
    """Rewards of the texts: the final one for all, compared by rollout or within situations; or what is still
    to come at each step, compared at equal steps."""
    mitigation: str = "none"
    """Reward variant, as on the command line of `train`."""
    reward_scale: float = Field(0.05, gt=0)
    """Factor on the rewards of texts; metrics stay unscaled."""
    invalid_penalty: float = Field(0.2, ge=0)
    """Taken from the reward for every answer that names no action."""
    trace_fraction: float = Field(0.02, ge=0, le=1)
    """Share of the rollouts whose steps are logged; every rollout's sums are."""

    @field_validator("mitigation")
    @classmethod
    def _known(cls, text: str) -> str:
        return str(Mitigation.parse(text))

    @property
    def variant(self) -> Mitigation:
        return Mitigation.parse(self.mitigation)

    @property
    def plain(self) -> bool:
        return self.variant == NONE


def settings_of(cfg: DictConfig) -> ReputationSettings:
    """The block of a run's tree. Raises ValueError with one line."""
    block: Any = cfg.get(KEY)
    values = {} if block is None else OmegaConf.to_container(block, resolve=True)
    try:
        return ReputationSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join((KEY, *map(str, first["loc"])))
        said = "unknown setting" if first["type"] == "extra_forbidden" else first["msg"]
        raise ValueError(f"{where}: {said.removeprefix('Value error, ')}") from None
