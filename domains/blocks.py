"""A domain's block of a run's configuration as typed settings, with one line for what is wrong in it.

Called by the settings of the domains, in the launcher before a run starts and in every worker.
"""

import json
from collections.abc import Callable, Mapping
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


def options_of(key: str, one: str, example: str, given: Mapping[str, Any]) -> dict[str, str]:
    """What `dataset_loader_params.KEY` names, each with its options as JSON text; null leaves it out.

    `one` is the word for one of them. Raises ValueError if none is left, or for options that are no mapping.
    """
    found = {}
    for name, options in given.items():
        if options is None:
            continue
        if not isinstance(options, Mapping):
            raise ValueError(f"{key}.{name}={options!r}: options are a mapping; write {name}: {{}}")
        found[name] = json.dumps(dict(options), sort_keys=True)
    if not found:
        raise ValueError(f"dataset_loader_params.{key} names no {one}; for instance {example}")
    return found
