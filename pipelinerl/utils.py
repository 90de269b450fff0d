"""For rollout code of domains: finding environment servers, and what rollouts of one process share."""

from collections.abc import Callable
from typing import Generic, TypeVar

from omegaconf import DictConfig

from pipelinerl.config.environments import environment_specs
from pipelinerl.config.machine import Job

__all__ = ["PerTree", "get_environment_jobs", "resolve_environment_key"]

Value = TypeVar("Value")


def resolve_environment_key(cfg: DictConfig, default: str | None = None) -> str | None:
    """`environment_key`, or the only configured environment, or `default`.

    Where `actor.domain_mix` draws domains that environments are named after, only these count.
    """
    if cfg.get("environment_key"):
        return str(cfg.environment_key)
    mix = (cfg.get("actor") or {}).get("domain_mix") or {}
    drawn = {str(domain) for domain, weight in mix.items() if weight and weight > 0}
    keys = list(environment_specs(cfg))
    keys = [key for key in keys if key in drawn] or keys
    return keys[0] if len(keys) == 1 else default


def get_environment_jobs(cfg: DictConfig, key: str | None = None) -> list[Job]:
    """Servers of one environment, or without a key of all, whatever `environment_key` is, as in upstream."""
    jobs = [Job.model_validate(dict(job)) for job in cfg.get("jobs") or [] if job.kind == "environment"]
    return [job for job in jobs if key is None or job.environment_key == key]


class PerTree(Generic[Value]):
    """`make(cfg)` on first use and whenever another tree is given; trees are compared by identity.

    A worker process has one tree, so that only the last one is held.
    """

    def __init__(self, make: Callable[[DictConfig], Value]) -> None:
        self._make = make
        self._held: tuple[DictConfig, Value] | None = None

    def of(self, cfg: DictConfig) -> Value:
        """The value of this tree."""
        if self._held is None or self._held[0] is not cfg:
            self._held = (cfg, self._make(cfg))
        return self._held[1]
