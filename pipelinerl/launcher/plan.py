"""From arguments to a plan: composed, validated, prepared and placed, but nothing started."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.compose import Composition
from pipelinerl.config.files import forget_started, keep_started, save, typed
from pipelinerl.config.machine import Job, roles_of
from pipelinerl.config.secrets import hidden, secrets_of
from pipelinerl.config.tree import Config
from pipelinerl.config.variants import STREAM_BACKENDS
from pipelinerl.domain import BaseDomain, Domain, NamedService, ServiceSpec, parts_of
from pipelinerl.launcher.backend import Backend
from pipelinerl.launcher.cards import CardOf, card_memory
from pipelinerl.launcher.checks.rehearsal import START_DEADLINE_S, VALIDATE_DEADLINE_S, Looked, look
from pipelinerl.launcher.choices import Choice, choices
from pipelinerl.launcher.commands import commands, write_accelerate_config
from pipelinerl.launcher.folder import RunFolder
from pipelinerl.launcher.memory_values import MemoryPlan
from pipelinerl.launcher.placement import STREAMS_SERVICE, derive, place
from pipelinerl.launcher.services import is_spread, write_control_token, write_token
from pipelinerl.launcher.streams_server import forget_earlier_records, write_server_config
from pipelinerl.launcher.supervision import ChildSpec, write_start_script
from pipelinerl.launcher.trainer_choice import choose_trainer
from pipelinerl.streams.kind import streams_kind


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is going to be started."""

    cfg: Config
    """The resolved, validated tree."""
    children: list[ChildSpec]
    """One per process."""
    rows: list[Choice]
    """What was chosen for the user."""
    spread: bool = False
    """Whether servers of the domain are spread over hosts, and so need a token."""


def fix_output_dir(tree: DictConfig) -> Path:
    """The absolute folder of the run, written into the tree; `results/<domain>/<date-time>` by default."""
    given = tree.get("output_dir")
    default = (
        Path("results") / (tree.get("domain_name") or "run") / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    )
    path = Path(str(given) if given else default).expanduser().absolute()
    tree.output_dir = str(path)
    return path


def make_plan(
    composition: Composition,
    domain: Domain,
    folder: RunFolder,
    backend: Backend,
    dry_run: bool,
    named: Sequence[tuple[NamedService, str]] = (),
    memory: MemoryPlan | None = None,
) -> Plan:
    """Let the domain prepare, place every process, write the resolved tree and every `start.sh`.

    `named` is what `asked_services` gave, `memory` what was planned for the cards. Streams of an earlier
    attempt are set aside, except in a dry run.
    """
    tree = composition.tree
    try:
        _set(tree, domain.prepare(_resolved(tree), folder.path))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{tree.domain_name or 'the domain'} cannot be prepared: {error}") from error
    plan = _placed(composition, domain, folder, backend, dry_run, named, memory)
    if not dry_run:
        # Before anything of an earlier start is moved: a start that is refused leaves it as it was.
        _look_at_problems(tree, plan, START_DEADLINE_S)
        folder.set_streams_aside(plan.cfg.attempt)
        forget_earlier_records(plan.cfg, folder.path)
    _write_tree(tree, folder, dry_run)
    write_server_config(plan.cfg, folder.path)
    if plan.spread:
        write_token(folder.path)
    write_control_token(folder.path)
    write_accelerate_config(folder.path)
    hidden_values = secrets_of(tree)
    for child in plan.children:
        write_start_script(child, hidden_values)
    return plan


def validated_plan(
    composition: Composition,
    domain: Domain,
    folder: RunFolder,
    backend: Backend,
    memory: MemoryPlan | None,
    dry_run: bool,
) -> Plan:
    """What a start would do, as far as it is known before the domain has prepared its data; writes nothing.

    Raises ConfigError as `make_plan`.
    """
    plan = _placed(composition, domain, folder, backend, True, (), memory)
    if not dry_run:
        makes_data = any(type(part).prepare is not BaseDomain.prepare for part in parts_of(domain))
        _look_at_problems(composition.tree, plan, VALIDATE_DEADLINE_S, makes_data)
    return plan


def _look_at_problems(tree: DictConfig, plan: Plan, deadline_s: float, may_fail: bool = False) -> None:
    """Load them; what there is becomes a row of the table. Raises ConfigError for what cannot be played.

    `may_fail`: the domain has not prepared its data yet.
    """
    looked = look(tree, deadline_s)
    if looked.problems and may_fail:
        looked = Looked(said="not there before the start, which makes its data")
    if looked.problems:
        raise ConfigError(looked.problems)
    if looked.said:
        after = [row.subject for row in plan.rows].index("datasets") + 1
        because = f"of {plan.cfg.dataset_loader}"
        plan.rows.insert(after, Choice("problems", looked.said, because, "dataset_loader=PATH"))


def _placed(
    composition: Composition,
    domain: Domain,
    folder: RunFolder,
    backend: Backend,
    dry_run: bool,
    named: Sequence[tuple[NamedService, str]],
    memory: MemoryPlan | None,
) -> Plan:
    tree, hosts = composition.tree, backend.hosts
    services, cfg = _missing_services(tree, domain), typed(tree)
    spread = [spec.name for spec in services if is_spread(spec, services, hosts)]
    jobs = place(cfg, hosts, [spec.name for spec in services], backend.free, spread)
    servers = {job.name: job for job in jobs if job.kind == "service"}
    _set(tree, _addresses(services, servers))
    if streams_kind(cfg.streams).starts_server(cfg.streams):
        redis = servers[STREAMS_SERVICE]
        _set(tree, {"streams.host": redis.hostname, "streams.port": redis.port})
        if len(hosts) > 1 and cfg.streams.password is None:
            _set(tree, {"streams.password": secrets.token_urlsafe()})
    with open_dict(tree):
        tree.attempt = folder.next_attempt()
        tree.jobs = [job.model_dump() for job in jobs]
        tree.derived = derive(cfg, jobs).model_dump()
    devices = next((hosts[job.node_rank].devices for job in jobs if job.kind == "finetune"), ())
    card_of: CardOf = (lambda device: memory.trainer_card) if memory is not None else card_memory
    planned = None if memory is None else memory.trainer
    trainer = choose_trainer(typed(tree), devices, dry_run, card_of, planned)
    with open_dict(tree):
        tree.derived.update(trainer.derived)
    final, checkpoint = typed(tree), folder.checkpoint
    children = commands(final, folder.path, services, hosts, checkpoint)
    found = choices(final, composition, folder.path, hosts, checkpoint, services, named, trainer, memory)
    hidden_values = secrets_of(tree)
    rows = [Choice(*(hidden(cell, hidden_values) for cell in row)) for row in found]
    return Plan(cfg=final, children=children, rows=rows, spread=bool(spread))


def _write_tree(tree: DictConfig, folder: RunFolder, dry_run: bool) -> None:
    # A dry run may be one of another model; a checkpoint of the run that was started stays that run's.
    if dry_run and folder.checkpoint is not None:
        keep_started(folder.path)
    save(tree, folder.path)
    if not dry_run:
        forget_started(folder.path)


def start_domain_over(tree: DictConfig, domain: Domain, output_dir: Path) -> None:
    """Let the domain remove what earlier runs of the folder keep elsewhere. Raises ConfigError."""
    try:
        domain.start_over(_resolved(tree), output_dir)
    except (ValueError, OSError) as error:
        raise ConfigError(f"{tree.domain_name or 'the domain'} cannot start over: {error}") from error


def asked_services(tree: DictConfig, domain: Domain, dry_run: bool) -> list[tuple[NamedService, str]]:
    """The servers that the user named and what they say they serve; a dry run asks nobody.

    Raises ConfigError with every problem of every server.
    """
    if "actor" not in roles_of(str(tree.debug.mode)):
        return []
    found, problems = [], list[str]()
    for service in domain.named_services(_resolved(tree)):
        try:
            found.append((service, "" if dry_run else service.ask()))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return found


def _resolved(tree: DictConfig) -> DictConfig:
    resolved = OmegaConf.create(OmegaConf.to_container(tree, resolve=True))
    assert isinstance(resolved, DictConfig)
    return resolved


def _set(tree: DictConfig, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        OmegaConf.update(tree, key, value, force_add=True)


def _missing_services(tree: DictConfig, domain: Domain) -> list[ServiceSpec]:
    """Services whose address the user did not configure, if this run has rollouts at all."""
    if "actor" not in roles_of(str(tree.debug.mode)):
        return []
    specs = [one for spec in domain.services(_resolved(tree)) for one in _replicas(spec)]
    names = [spec.name for spec in specs]
    if not STREAM_BACKENDS.find(tree.streams.backend).on_disk:
        names.append(STREAMS_SERVICE)
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"domain_hooks={tree.domain_hooks}: two services are named {name}; rename one")
    return [spec for spec in specs if not OmegaConf.select(tree, spec.url_key)]


def _replicas(spec: ServiceSpec) -> list[ServiceSpec]:
    """One specification per server; a single one keeps its name."""
    if spec.replicas == 1:
        return [spec]
    return [replace(spec, name=f"{spec.name}_{index}", replicas=1) for index in range(spec.replicas)]


def _addresses(services: Sequence[ServiceSpec], servers: Mapping[str, Job]) -> dict[str, str | list[str]]:
    """The address of each service by its key; a list where several servers have the same key."""
    found: dict[str, list[str]] = {}
    for spec in services:
        found.setdefault(spec.url_key, []).append(servers[spec.name].url)
    return {key: urls if len(urls) > 1 else urls[0] for key, urls in found.items()}
