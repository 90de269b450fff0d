"""Servers of a domain that do the same work: which they are, where they are, who may ask those elsewhere."""

import secrets
from collections.abc import Sequence
from pathlib import Path

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


def write_token(output_dir: Path) -> None:
    """A new secret for this start, readable by its owner only."""
    write_whole(token_file(output_dir), secrets.token_urlsafe(32), mode=0o600)
