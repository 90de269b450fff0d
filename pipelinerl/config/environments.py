"""Which environments a tree configures, under which keys, and how many servers each gets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig

from pipelinerl.config.tree import Config

ONLY_KEY = "environment"
OWN_KEYS = frozenset({"key", "mode", "replicas_per_actor"})
"""Keys of a specification that are not arguments of its target."""


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


def remote_specs(cfg: DictConfig) -> dict[str, Any]:
    """Those that are served by processes of their own; any other mode lives in the rollout's process."""
    if cfg.world.environment_mode != "remote":
        return {}
    return {
        key: spec for key, spec in environment_specs(cfg).items() if spec.get("mode", "remote") == "remote"
    }


def replicas(cfg: Config, specs: Mapping[str, Mapping[str, Any]], engines: int) -> dict[str, int]:
    """Servers of each environment.

    A specification's `replicas_per_actor`, else `world.env_replicas_per_actor`, times the engines; else
    `world.env_replicas`. Where `actor.domain_mix` draws domains that environments are named after, each gets
    its share of that, rounded up, and an environment of no drawn domain gets none.
    """
    weights = {key: (cfg.actor.domain_mix or {}).get(key, 0.0) for key in specs}
    mixed = any(weight > 0 for weight in weights.values())
    total = sum((cfg.actor.domain_mix or {}).values())
    counts = {}
    for key, spec in specs.items():
        per_engine = spec.get("replicas_per_actor")
        if per_engine is None:
            per_engine = cfg.world.env_replicas_per_actor
        base = cfg.world.env_replicas if per_engine is None else int(per_engine) * engines
        counts[key] = math.ceil(base * weights[key] / total) if mixed else base
    return counts
