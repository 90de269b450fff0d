"""What happens between a checked configuration and the first process: data, servers, files.

Called by `pipelinerl.launch`, which has made the choices and checked them. Here the domain prepares its data,
the plan is made, the problems are looked at, and what processes read is written; nothing is started. A
validation makes the same plan and writes nothing.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from pipelinerl.base.errors import ConfigError, printable
from pipelinerl.config.files import forget_started, keep_started, save
from pipelinerl.config.machine import roles_of
from pipelinerl.domain import Domain, NamedService
from pipelinerl.launcher.backend import Backend
from pipelinerl.launcher.checks.rehearsal import START_DEADLINE_S, VALIDATE_DEADLINE_S, Looked, look
from pipelinerl.launcher.commands import write_accelerate_config
from pipelinerl.launcher.folder import RunFolder
from pipelinerl.launcher.memory_choice import Chosen
from pipelinerl.launcher.plan import Facts, RunPlan, plan, resolved
from pipelinerl.launcher.services import write_control_token, write_token
from pipelinerl.launcher.streams_server import forget_earlier_records, write_server_config
from pipelinerl.launcher.supervision import write_start_script

MOST_REMARKS = 8
"""Lines that loaders of bundled domains may add to those of a start."""


def prepare(
    chosen: Chosen,
    domain: Domain,
    folder: RunFolder,
    backend: Backend,
    dry_run: bool,
    named: Sequence[tuple[NamedService, str]] = (),
    changed: tuple[str, ...] = (),
) -> RunPlan:
    """Let the domain prepare, plan, and write the resolved tree and every `start.sh`.

    `named` is what `asked_services` gave, `changed` what `resumed.compared` did. Streams of an earlier
    attempt are set aside, except in a dry run.
    """
    if domain.makes_data(resolved(chosen.tree)):
        print(f"preparing the data of {_name(chosen.tree)}", flush=True)
    try:
        prepared = dict(domain.prepare(resolved(chosen.tree), folder.path))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{_name(chosen.tree)} cannot be prepared: {error}") from error
    again = dry_run and bool(chosen.tree.force_restart)  # a start has removed what was there
    facts = Facts(
        dry_run=dry_run,
        attempt=0 if again else folder.next_attempt(),
        checkpoint=None if again else folder.checkpoint,
        changed=changed,
        prepared=prepared,
        named=tuple(named),
        password=secrets.token_urlsafe(),
    )
    made = plan(chosen, backend.hosts, facts, domain, backend.free)
    # Before anything of an earlier start is moved: a start that is refused leaves it as it was.
    if not dry_run:
        made = _with_problems(made, START_DEADLINE_S)
    children = made.children
    if not dry_run:
        folder.set_streams_aside(facts.attempt)
        forget_earlier_records(made.cfg, folder.path)
    _write_tree(made.tree, folder, dry_run)
    write_server_config(made.cfg, folder.path)
    if made.spread:
        write_token(folder.path)
    write_control_token(folder.path)
    write_accelerate_config(folder.path)
    for child in children:
        write_start_script(child, made.secrets)
    return made


def validated(
    chosen: Chosen,
    domain: Domain,
    folder: RunFolder,
    backend: Backend,
    dry_run: bool,
    changed: tuple[str, ...] = (),
) -> RunPlan:
    """The plan of a start, as far as it is known before the domain has prepared its data.

    Writes nothing. Raises ConfigError as `prepare`.
    """
    again = bool(chosen.tree.force_restart)
    facts = Facts(
        dry_run=dry_run,
        attempt=0 if again else folder.next_attempt(),
        checkpoint=None if again else folder.checkpoint,
        changed=changed,
    )
    made = plan(chosen, backend.hosts, facts, domain, backend.free)
    if dry_run:
        return made
    return _with_problems(made, VALIDATE_DEADLINE_S, domain.makes_data(resolved(chosen.tree)))


def _with_problems(made: RunPlan, deadline_s: float, may_fail: bool = False) -> RunPlan:
    """The plan with what there is to play. Raises ConfigError for problems that cannot be played.

    `may_fail`: the domain has not prepared its data yet, so that loading them may.
    """
    print(f"reading the problems ({made.cfg.dataset_loader})", flush=True)  # may take minutes
    looked = look(made.tree, deadline_s)
    if looked.problems and may_fail and not looked.loaded:
        looked = Looked(said="unknown before the start, which makes the data")
    if looked.problems:
        raise ConfigError(looked.problems)
    for remark in looked.remarks[:MOST_REMARKS]:
        print(printable(remark), flush=True)
    return replace(made, problems=looked.said)


def _write_tree(tree: DictConfig, folder: RunFolder, dry_run: bool) -> None:
    # A dry run may be one of another model; a checkpoint of the run that was started stays that run's.
    if dry_run and folder.began:
        keep_started(folder.path)
    save(tree, folder.path)
    if not dry_run:
        forget_started(folder.path)


def start_domain_over(tree: DictConfig, domain: Domain, output_dir: Path) -> None:
    """Let the domain remove what earlier runs of the folder keep elsewhere. Raises ConfigError."""
    try:
        domain.start_over(resolved(tree), output_dir)
    except (ValueError, OSError) as error:
        raise ConfigError(f"{_name(tree)} cannot start over: {error}") from error


def _name(tree: DictConfig) -> str:
    return str(tree.domain_name or "the domain")


def asked_services(tree: DictConfig, domain: Domain, dry_run: bool) -> list[tuple[NamedService, str]]:
    """The servers that the user named and what they say they serve; a dry run asks nobody.

    Raises ConfigError with every problem of every server.
    """
    if "actor" not in roles_of(str(tree.debug.mode)):
        return []
    found, problems = [], list[str]()
    for service in domain.named_services(resolved(tree)):
        try:
            found.append((service, "" if dry_run else service.ask()))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return found
