"""Everything that can be found wrong before a process starts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import MISSING, DictConfig, OmegaConf
from pydantic import ValidationError

from pipelinerl.base.errors import ConfigError, explain
from pipelinerl.config.files import config_path, typed
from pipelinerl.config.keys import leaves
from pipelinerl.config.tree import Config
from pipelinerl.domain import Domain, parts_of
from pipelinerl.launcher.checks import (
    data,
    environments,
    inert,
    machine,
    objective,
    partial,
    sampling,
    training,
)
from pipelinerl.launcher.placement import derive, place, roles_of


def checked(
    tree: DictConfig, domain: Domain, devices: int, dry_run: bool = False, given: Sequence[str] = ()
) -> Config:
    """The typed tree, or ConfigError with every problem found, one line each.

    `devices` counts the GPUs of the run. `given` are the keys that the command line set: none of them may be
    without effect.
    """
    missing = [f"{key}: missing; set {key}=VALUE" for key in missing_keys(tree)]
    if missing:
        raise ConfigError(missing)
    cfg = typed(tree)
    found = [*problems(cfg, devices, dry_run), *domain_problems(tree, domain)]
    found += inert.check(cfg, given, domain)
    if found:
        raise ConfigError(found)
    return cfg


def missing_keys(tree: DictConfig) -> list[str]:
    """Keys that a profile leaves to the user (`???`)."""
    return sorted(key for key, value in leaves(tree).items() if value == MISSING)


def problems(cfg: Config, devices: int, dry_run: bool = False) -> Iterator[str]:
    """Problems of the core's own keys; `devices` counts the GPUs of the run."""
    derived, unplaceable = None, list[str]()
    try:  # where processes go decides how many texts a step has; which ports are free does not matter
        derived = derive(cfg, place(cfg, range(devices), free=lambda port: True))
    except ConfigError as error:
        unplaceable = error.problems
    yield from data.check(cfg, roles_of(cfg.debug.mode))
    yield from sampling.check(cfg)
    yield from objective.check(cfg)
    yield from training.check(cfg, derived)
    yield from machine.check(cfg, devices, dry_run)
    yield from unplaceable
    yield from environments.check(cfg)
    yield from partial.check(cfg)


def domain_problems(tree: DictConfig, domain: Domain) -> list[str]:
    """Problems of each domain's block: unknown keys, wrong values, then its own checks."""
    return [problem for part in parts_of(domain) for problem in _problems_of_one(tree, part)]


def _problems_of_one(tree: DictConfig, domain: Domain) -> list[str]:
    if domain.settings is not None and domain.settings_key is not None:
        block = tree.get(domain.settings_key)
        values = {} if block is None else OmegaConf.to_container(block, resolve=True)
        try:
            domain.settings.model_validate(values)
        except ValidationError as error:
            return explain(error, domain.settings, domain.settings_key)
    return list(domain.validate(tree))


def output_dir_problem(output_dir: Path) -> str | None:
    """Why a run may not write here, or None."""
    if output_dir.exists() and not output_dir.is_dir():
        return f"output_dir={output_dir}: a file; choose another folder"
    nearest_parent = next(path for path in (output_dir, *output_dir.parents) if path.exists())
    if not os.access(nearest_parent, os.W_OK):
        return f"output_dir={output_dir}: {nearest_parent} is not writable; choose another folder"
    if output_dir.is_dir() and not config_path(output_dir).exists():
        foreign = sorted(path.name for path in output_dir.iterdir() if path.name not in OWN_BEFORE_START)
        if foreign:
            return f"output_dir={output_dir}: holds {foreign[0]}, which no run made; choose an empty folder"
    return None


OWN_BEFORE_START = frozenset({".lock", "launcher", "conf", "world"})
"""What an interrupted start may leave before the configuration is written."""
