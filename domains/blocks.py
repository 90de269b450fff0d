"""A domain's block of a run's configuration as typed settings, with one line for what is wrong in it.

Called by the settings of the domains, in the launcher before a run starts and in every worker.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, ValidationError

Settings = TypeVar("Settings", bound=BaseModel)


class Block(BaseModel):
    """Settings that refuse unknown keys and never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Remedy = Callable[[str], str | None]
"""What to say of a key that other configurations know; None for any other."""


def block_of(cfg: DictConfig, key: str, model: type[Settings], remedy: Remedy | None = None) -> Settings:
    """The block `key` of a tree, or the defaults without one. Raises ValueError with one line."""
    block: Any = cfg.get(key)
    values = {} if block is None else OmegaConf.to_container(block, resolve=True)
    return validated(values, key, model, remedy)


def validated(values: Any, key: str, model: type[Settings], remedy: Remedy | None = None) -> Settings:
    """Plain values as settings. Raises ValueError that names the first bad key below `key`."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join((key, *map(str, first["loc"])))
        unknown = first["type"] == "extra_forbidden"
        if unknown and remedy and (instead := remedy(str(first["loc"][-1]))):
            raise ValueError(f"{where} {instead}") from None
        said = "unknown setting" if unknown else first["msg"]
        raise ValueError(f"{where}: {said.removeprefix('Value error, ')}") from None
