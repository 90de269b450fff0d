"""What a domain may tell the core besides its loader and its rollout: one small object with hooks.

A domain subclasses `BaseDomain`, overrides what it needs and names the object in its configuration:
`domain_hooks: domains.mine.domain.DOMAIN`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from omegaconf import DictConfig
from pydantic import BaseModel

from pipelinerl.config.errors import ConfigError, suggestion
from pipelinerl.observe.focus import ReportFocus


@dataclass(frozen=True, kw_only=True)
class ServiceSpec:
    """A server that the launcher starts for the domain and stops with the run."""

    name: str
    """Folder below `services/` and name in messages."""
    argv: list[str]
    """Command; `{port}`, `{host}` and `{output_dir}` are filled in."""
    url_key: str
    """Dotted configuration key that receives `http://HOST:PORT`."""
    health: str = "/health"
    """Path that answers 200 when the service is ready."""
    start_deadline_s: float = 60.0
    """From process start to a healthy answer."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables added to the launcher's."""
    note: str = ""
    """What was chosen for it, shown behind its address in the table of choices."""


@dataclass(frozen=True, kw_only=True)
class ReportSection:
    """A part of the final report."""

    title: str
    """Heading."""
    rows: list[tuple[str, ...]] = field(default_factory=list)
    """Table rows as text; the first row is the header."""
    text: str = ""
    """Lines printed under the table."""


@runtime_checkable
class Domain(Protocol):
    """Hooks the core knows. All are called with the resolved tree; none may import torch."""

    settings: type[BaseModel] | None
    settings_key: str | None
    report_focus: ReportFocus
    folders: Sequence[str]
    policy_keys: Sequence[str] | None

    def prepare(self, cfg: DictConfig, output_dir: Path) -> Mapping[str, Any]: ...
    def services(self, cfg: DictConfig) -> list[ServiceSpec]: ...
    def validate(self, cfg: DictConfig) -> list[str]: ...
    def remedy(self, key: str) -> str | None: ...
    def attach(self, cfg: DictConfig, output_dir: Path) -> None: ...
    def checkpoint(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...
    def report(self, output_dir: Path) -> list[ReportSection]: ...
    def demonstrations(self, cfg: DictConfig, seed: int, phase: str) -> Iterable[Any]: ...
    def vocabulary(self) -> Sequence[str]: ...


class BaseDomain:
    """A domain without extras: the defaults of every hook."""

    settings: type[BaseModel] | None = None
    """Typed model of the domain's own block, or None."""
    settings_key: str | None = None
    """Top-level key of that block."""
    report_focus: ReportFocus = ReportFocus()
    """Evaluation metrics that the final report shows first."""
    folders: Sequence[str] = ()
    """What runs of this domain make below `output_dir`; `force_restart` removes them with the rest."""
    policy_keys: Sequence[str] | None = None
    """Of `rewards`, `actor.discount_factor`, `actor.system_prompt` and `actor.task_template`, what its policy
    of rollouts reads; setting another one is refused. None: any of them may be read."""

    def prepare(self, cfg: DictConfig, output_dir: Path) -> Mapping[str, Any]:
        """Make data the run needs, such as a synthetic world.

        Called once per start, before services; must find its earlier result when a run resumes.
        Returns dotted configuration keys and the values they get.
        """
        return {}

    def services(self, cfg: DictConfig) -> list[ServiceSpec]:
        """Servers to start. A service whose address is configured is left out."""
        return []

    def validate(self, cfg: DictConfig) -> list[str]:
        """Problems found before anything starts, one line each with the remedy."""
        return []

    def remedy(self, key: str) -> str | None:
        """What to do instead of a key of the domain's block that older configurations know; None for others.

        `key` is dotted. Called for keys that do not exist, before anything is composed further.
        """
        return None

    def attach(self, cfg: DictConfig, output_dir: Path) -> None:
        """The run this object belongs to; called once in the actor, before `restore` and `checkpoint`."""

    def checkpoint(self) -> dict[str, Any]:
        """State that the actor stores with its snapshot; plain data."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `checkpoint` gave."""

    def report(self, output_dir: Path) -> list[ReportSection]:
        """Sections for the final report, from the files of a finished run."""
        return []

    def demonstrations(self, cfg: DictConfig, seed: int, phase: str) -> Iterable[Any]:
        """`pipelinerl.bootstrap.demonstrations.Demonstration`s of one world, the same for equal arguments.

        `phase` is the name of one of `bootstrap.phases`. Raises NotImplementedError without any.
        """
        raise NotImplementedError(f"{type(self).__name__} has no demonstrations")

    def vocabulary(self) -> Sequence[str]:
        """Pieces of the domain's formats that a tokenizer trained for it keeps whole."""
        return ()


def resolve_dotted(path: str, key: str) -> Any:
    """The object at a dotted path. Raises ConfigError naming `key` and what is missing."""
    module_name, _, attribute = path.rpartition(".")
    if not module_name:
        raise ConfigError(f"{key}={path}: not a dotted path; write package.module.name")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{key}={path}: no module named {error.name}; check the spelling or install it"
        ) from error
    except ImportError as error:
        raise ConfigError(f"{key}={path}: importing {module_name} failed: {error}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        public = [name for name in vars(module) if not name.startswith("_")]
        hint = suggestion(attribute, public)
        raise ConfigError(f"{key}={path}: {module_name} has no {attribute}; {hint}") from None
