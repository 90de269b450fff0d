"""Which environments a tree configures, under which keys, and how many servers each gets."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig

from pipelinerl.config.tree import Config

ONLY_KEY = "environment"
OWN_KEYS = frozenset({"key", "mode", "replicas_per_actor"})
"""Keys of a specification that are not arguments of its target."""

OF_SERVERS = ("env_replicas", "env_replicas_per_actor", "environment_mode")
"""Keys of `world` that are about environments only."""


def located_specs(cfg: Config | DictConfig) -> Iterator[tuple[str, str, Any]]:
    """Where each configured environment stands in the tree, its key, and what stands there."""
    one, several = getattr(cfg, "environment", None), getattr(cfg, "environments", None)
    if one is not None:
        key = getattr(cfg, "environment_key", None) or one.get("key") or ONLY_KEY
        yield "environment", str(key), one
    elif isinstance(several, Mapping):
        yield from ((f"environments.{key}", str(key), spec) for key, spec in several.items())
    else:
        for index, spec in enumerate(several or []):
            yield f"environments.{index}", str(spec.get("key", index)), spec


def environment_specs(cfg: Config | DictConfig) -> dict[str, Any]:
    """The configured environments by key, in order; a single one without a key is called `environment`."""
    return {key: spec for _, key, spec in located_specs(cfg)}


def replicas(cfg: Config, engines: int) -> dict[str, int]:
    """Servers of each remote environment; one of any other mode lives in the rollout's process.

    A specification's `replicas_per_actor`, else `world.env_replicas_per_actor`, times the engines; else
    `world.env_replicas`. Where `actor.domain_mix` draws domains that environments are named after, each gets
    its share of that, rounded up, and an environment of no drawn domain gets none.
    """
    specs, mix = environment_specs(cfg), cfg.actor.domain_mix or {}
    remote = cfg.world.environment_mode == "remote"
    specs = {key: spec for key, spec in specs.items() if remote and spec.get("mode", "remote") == "remote"}
    mixed = any(mix.get(key, 0.0) > 0 for key in specs)
    counts = {}
    for key, spec in specs.items():
        per_engine = spec.get("replicas_per_actor")
        if per_engine is None:
            per_engine = cfg.world.env_replicas_per_actor
        base = cfg.world.env_replicas if per_engine is None else int(per_engine) * engines
        counts[key] = math.ceil(base * mix.get(key, 0.0) / sum(mix.values())) if mixed else base
    return counts
