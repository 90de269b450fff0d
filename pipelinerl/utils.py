"""Finding environment servers: what rollout code imports from here."""

from __future__ import annotations

from omegaconf import DictConfig

from pipelinerl.config.machine import Job
from pipelinerl.environment_keys import configured_keys

__all__ = ["get_environment_jobs", "resolve_environment_key"]


def resolve_environment_key(cfg: DictConfig, default: str | None = None) -> str | None:
    """`environment_key`, or the only configured environment, or `default`."""
    if cfg.get("environment_key"):
        return str(cfg.environment_key)
    keys = configured_keys(cfg)
    return keys[0] if len(keys) == 1 else default


def get_environment_jobs(cfg: DictConfig, key: str | None = None) -> list[Job]:
    """Servers of one environment, or of all when there is no key and no single environment."""
    wanted = key if key is not None else resolve_environment_key(cfg)
    jobs = [Job.model_validate(dict(job)) for job in cfg.get("jobs") or [] if job.kind == "environment"]
    return [job for job in jobs if wanted is None or job.environment_key == wanted]
