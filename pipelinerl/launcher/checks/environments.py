"""Environments that rollouts talk to: their specifications, keys and numbers of servers."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pipelinerl.base.errors import suggestion
from pipelinerl.config.environments import OF_SERVERS, located_specs
from pipelinerl.config.machine import WorldConfig
from pipelinerl.config.tree import Config
from pipelinerl.launcher.checks.dotted import dotted


def check(cfg: Config) -> Iterator[str]:
    """Problems with `environment`, `environments` and the keys about them."""
    if cfg.environment is not None and cfg.environments:
        yield "environment and environments: both are set; use environments for several"
    specs = list(located_specs(cfg))
    for where, _, spec in specs:
        yield from _one(where, spec)
    keys = Counter(key for _, key, _ in specs)
    for key, count in keys.items():
        if count > 1:
            yield f"environments: {count} have the key {key}; give each its own"
    wanted = cfg.environment_key
    if wanted is not None and cfg.environments and wanted not in keys:
        yield f"environment_key={wanted}: no such environment; {suggestion(wanted, keys)}"
    plain = WorldConfig()
    for key in OF_SERVERS:
        value, default = getattr(cfg.world, key), getattr(plain, key)
        if not specs and value != default:
            shown = "null" if default is None else default
            yield f"world.{key}={value}: there is no environment; set environments or leave it at {shown}"


def _one(where: str, spec: dict[str, Any]) -> Iterator[str]:
    if "_target_" not in spec:
        yield f"{where}: has no _target_; give the dotted path of the environment's class"
    else:
        # Upstream's coding has an environment, and the domain of that name here a sandbox of its own.
        for problem in dotted(f"{where}._target_", str(spec["_target_"]), "the environment's class"):
            yield f"{problem}; or remove the entry, if no rollout asks for it"
    count = spec.get("replicas_per_actor")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
        yield f"{where}.replicas_per_actor={count}: must be a whole number of servers per engine, 0 or more"
