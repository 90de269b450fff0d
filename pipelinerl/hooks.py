"""The hooks that a run names in `domain_hooks`: those of one domain, or of several as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipelinerl.config.errors import ConfigError
from pipelinerl.domain import BaseDomain, Domain, ReportSection, ServiceSpec, resolve_dotted
from pipelinerl.observe.focus import ReportFocus


class CombinedDomain(BaseDomain):
    """Asks each domain in turn; demonstrations and vocabulary belong to the model of one and are left out."""

    def __init__(self, parts: Mapping[str, Domain]) -> None:
        """`parts` by the dotted path that names them; snapshots are told apart by it."""
        self.parts = dict(parts)
        self.folders = tuple(folder for part in parts.values() for folder in part.folders)
        read = [part.policy_keys for part in parts.values()]
        self.policy_keys = (
            None if None in read else tuple(dict.fromkeys(key for keys in read for key in keys or ()))
        )
        self.report_focus = ReportFocus(
            headline=tuple(
                dict.fromkeys(name for part in parts.values() for name in part.report_focus.headline)
            )
        )

    def prepare(self, cfg: DictConfig, output_dir: Path) -> Mapping[str, Any]:
        """Each domain sees what the ones before it set."""
        found: dict[str, Any] = {}
        for part in self.parts.values():
            values = part.prepare(cfg, output_dir)
            found |= values
            for key, value in values.items():
                OmegaConf.update(cfg, key, value, force_add=True)
        return found

    def services(self, cfg: DictConfig) -> list[ServiceSpec]:
        return [spec for part in self.parts.values() for spec in part.services(cfg)]

    def validate(self, cfg: DictConfig) -> list[str]:
        return [problem for part in self.parts.values() for problem in part.validate(cfg)]

    def remedy(self, key: str) -> str | None:
        said = (part.remedy(key) for part in self.parts.values())
        return next((line for line in said if line is not None), None)

    def attach(self, cfg: DictConfig, output_dir: Path) -> None:
        for part in self.parts.values():
            part.attach(cfg, output_dir)

    def checkpoint(self) -> dict[str, Any]:
        return {name: part.checkpoint() for name, part in self.parts.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """States of domains that the run no longer has are left; new domains start fresh."""
        for name in state.keys() & self.parts.keys():
            self.parts[name].restore(state[name])

    def report(self, output_dir: Path) -> list[ReportSection]:
        return [section for part in self.parts.values() for section in part.report(output_dir)]


def parts_of(domain: Domain) -> Sequence[Domain]:
    """The domains behind a combined one, or the domain itself."""
    return list(domain.parts.values()) if isinstance(domain, CombinedDomain) else [domain]


def load_domain(path: str | Sequence[str] | None) -> Domain:
    """The hooks named by `domain_hooks`; a class is instantiated, null gives the defaults, a list all.

    Raises ConfigError if a path leads nowhere or to something that is no domain.
    """
    if path is None:
        return BaseDomain()
    if not isinstance(path, str):
        return CombinedDomain({str(each): load_domain(str(each)) for each in path})
    found = resolve_dotted(path, "domain_hooks")
    domain = found() if isinstance(found, type) else found
    if not isinstance(domain, Domain):
        raise ConfigError(
            f"domain_hooks={path}: {type(domain).__name__} is no domain, subclass domain.BaseDomain"
        )
    return domain
