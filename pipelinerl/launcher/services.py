"""Servers of a domain that do the same work, and the secrets with which a run's servers are asked."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from pipelinerl.base.access import CONTROL_TOKEN_VARIABLE, SERVER_NAME_VARIABLE, AccessError, control_token
from pipelinerl.base.errors import ConfigError
from pipelinerl.base.files import write_whole
from pipelinerl.config.hosts import Host
from pipelinerl.domain import ServiceSpec


def alike(spec: ServiceSpec, services: Sequence[ServiceSpec]) -> tuple[str, ...]:
    """Names of the servers at the same configuration key, this one among them; empty for a single one."""
    names = tuple(one.name for one in services if one.url_key == spec.url_key)
    return names if len(names) > 1 else ()


def is_spread(spec: ServiceSpec, services: Sequence[ServiceSpec], hosts: Sequence[Host]) -> bool:
    """Whether a server and those like it take turns over the hosts."""
    return len(hosts) > 1 and spec.remote_argv is not None and bool(alike(spec, services))


def token_file(output_dir: Path) -> Path:
    """The secret of servers that are spread over hosts, in the folder that these share."""
    return output_dir / "services" / "token"


def control_token_file(output_dir: Path) -> Path:
    """The secret of the engines' control routes: the user's own file, or one in the run's folder."""
    given = os.environ.get(CONTROL_TOKEN_VARIABLE)
    return Path(given).absolute() if given else output_dir / "launcher" / "control_token"


def control_environment(output_dir: Path, server_name: str | None = None) -> dict[str, str]:
    """What engines and trainer are told: the file of the secret and, an engine, by which name it is asked."""
    told = {CONTROL_TOKEN_VARIABLE: str(control_token_file(output_dir))}
    return told if server_name is None else told | {SERVER_NAME_VARIABLE: server_name}


def write_control_token(output_dir: Path) -> None:
    """Make the secret where there is none; a later start keeps it, for engines that are run by hand.

    Raises ConfigError for a file that is no secret.
    """
    file = control_token_file(output_dir)
    if not file.exists() and CONTROL_TOKEN_VARIABLE not in os.environ:
        write_whole(file, secrets.token_urlsafe(32), mode=0o600)
    try:
        control_token({CONTROL_TOKEN_VARIABLE: str(file)})
    except AccessError as error:
        raise ConfigError(str(error)) from None


def write_token(output_dir: Path) -> None:
    """A new secret for this start, readable by its owner only."""
    write_whole(token_file(output_dir), secrets.token_urlsafe(32), mode=0o600)
