"""From arguments to a plan: composed, validated, prepared and placed, but nothing started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.compose import Composition
from pipelinerl.config.environments import remote_specs
from pipelinerl.config.files import save, typed
from pipelinerl.config.paths import default_output_dir
from pipelinerl.config.tree import Config
from pipelinerl.domain import Domain, ServiceSpec
from pipelinerl.launcher.choices import Choice, choices
from pipelinerl.launcher.commands import commands
from pipelinerl.launcher.folder import RunFolder
from pipelinerl.launcher.placement import STREAMS_SERVICE, derive, is_free, place, roles_of
from pipelinerl.launcher.streams_server import forget_earlier_records, write_server_config
from pipelinerl.launcher.supervision import ChildSpec, write_start_script

REPLAYED = {"preprocessor": "actor", "finetune+preprocessor": "actor", "finetune": "training_data"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is going to be started."""

    cfg: Config
    """The resolved, validated tree."""
    children: list[ChildSpec]
    """One per process."""
    rows: list[Choice]
    """What was chosen for the user."""


def fix_output_dir(tree: DictConfig, now: datetime) -> Path:
    """The absolute folder of the run, written into the tree."""
    given = tree.get("output_dir")
    path = (
        Path(str(given) if given else default_output_dir(tree.get("domain_name"), now))
        .expanduser()
        .absolute()
    )
    tree.output_dir = str(path)
    return path


def usable_devices(composition: Composition, dry_run: bool) -> list[str]:
    """Ids of the GPUs this run uses; a dry run on a machine without any imagines as many as the shares."""
    tree = composition.tree
    if tree.hardware.kind != "gpu":
        return []
    found = composition.devices
    wanted = int(tree.hardware.devices or 0)
    if dry_run and not found:
        world = tree.world
        shares = int(world.actor_fraction + world.preprocessor_fraction + world.finetune_fraction)
        return [str(index) for index in range(wanted or max(shares, 2))]
    return found[:wanted] if wanted else found


def make_plan(
    composition: Composition,
    domain: Domain,
    cfg: Config,
    folder: RunFolder,
    devices: Sequence[str],
    free: Callable[[int], bool] = is_free,
    dry_run: bool = False,
) -> Plan:
    """Let the domain prepare, place every process, write the resolved tree and every `start.sh`.

    `free` says whether a port may be used. Streams of an earlier attempt are set aside, except in a dry run.
    """
    check_recording(cfg)
    tree = composition.tree
    _set(tree, _prepared(tree, domain, folder.path))
    services = _missing_services(tree, domain)
    jobs = place(cfg, range(len(devices)), [spec.name for spec in services], _environments(tree), free)
    urls = {job.name: job.url for job in jobs if job.kind == "service"}
    _set(tree, {spec.url_key: urls[spec.name] for spec in services})
    if cfg.streams.starts_server:
        redis = next(job for job in jobs if job.name == STREAMS_SERVICE)
        _set(tree, {"streams.host": redis.hostname, "streams.port": redis.port})
    attempt = folder.next_attempt()
    with open_dict(tree):
        tree.attempt = attempt
        tree.jobs = [job.model_dump() for job in jobs]
        tree.derived = derive(cfg, jobs).model_dump()
    final = typed(tree)
    checkpoint = folder.checkpoint
    children = commands(final, folder.path, services, devices, checkpoint)
    if not dry_run:
        folder.set_streams_aside(attempt)
        forget_earlier_records(final, folder.path)
    save(tree, folder.path)
    write_server_config(final, folder.path)
    for child in children:
        write_start_script(child)
    return Plan(
        cfg=final,
        children=children,
        rows=choices(final, composition, folder.path, devices, checkpoint, services),
    )


def _resolved(tree: DictConfig) -> DictConfig:
    resolved = OmegaConf.create(OmegaConf.to_container(tree, resolve=True))
    assert isinstance(resolved, DictConfig)
    return resolved


def _prepared(tree: DictConfig, domain: Domain, output_dir: Path) -> Mapping[str, Any]:
    try:
        return domain.prepare(_resolved(tree), output_dir)
    except (ValueError, OSError) as error:
        raise ConfigError(f"{tree.domain_name or 'the domain'} cannot be prepared: {error}") from error


def _set(tree: DictConfig, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        OmegaConf.update(tree, key, value, force_add=True)


def _missing_services(tree: DictConfig, domain: Domain) -> list[ServiceSpec]:
    """Services whose address the user did not configure, if this run has rollouts at all."""
    if "actor" not in roles_of(tree.debug.mode):
        return []
    specs = domain.services(_resolved(tree))
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"domain_hooks={tree.domain_hooks}: two services are named {name}; rename one")
    return [spec for spec in specs if not OmegaConf.select(tree, spec.url_key)]


def _environments(tree: DictConfig) -> dict[str, Any]:
    """Specifications of the environments that need servers, by key."""
    return remote_specs(_resolved(tree)) if "actor" in roles_of(tree.debug.mode) else {}


def check_recording(cfg: Config) -> None:
    """Raises ConfigError if the stream that this debug mode replays was not recorded in its folder."""
    source, topic = cfg.debug.streams_from, REPLAYED.get(cfg.debug.mode)
    if source is None or topic is None:
        return
    if not (Path(source) / "streams" / topic).is_dir():
        raise ConfigError(f"debug.streams_from={source}: has no streams/{topic}; give the folder of a run")
