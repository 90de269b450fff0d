"""Which environments a tree configures, under which keys."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

ONLY_KEY = "environment"


def environment_specs(cfg: DictConfig) -> dict[str, Any]:
    """The configured environments by key; a single one without a key is called `environment`."""
    if cfg.get("environment") is not None:
        return {str(cfg.get("environment_key") or ONLY_KEY): cfg.environment}
    several = cfg.get("environments")
    if isinstance(several, DictConfig):
        return {str(key): spec for key, spec in several.items()}
    return {str(spec.get("key", index)): spec for index, spec in enumerate(several or [])}


def configured_keys(cfg: DictConfig) -> list[str]:
    """Their keys, in order."""
    return list(environment_specs(cfg))
