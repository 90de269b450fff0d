"""What a domain may tell the core besides its loader and its rollout: one small object with hooks.

A domain subclasses `BaseDomain`, overrides what it needs and names the object in its configuration:
`domain_hooks: domains.mine.domain.DOMAIN`.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel

from pipelinerl.base.errors import ConfigError, suggestion


@dataclass(frozen=True, kw_only=True)
class ReportFocus:
    """What a domain wants shown first; by default success, reward and the yes/no metrics."""

    headline: tuple[str, ...] = ()
    """Evaluation metrics of the printed table, in order. The first one is the domain's headline: the report
    opens with a sentence about it and with its curve."""
    stages: Mapping[str, str] = field(default_factory=dict)
    """Label -> evaluation metric, for the figure of the stages of an agent."""


@dataclass(frozen=True, kw_only=True)
class ServiceSpec:
    """A server that the launcher starts for the domain and stops with the run."""

    name: str
    """Folder below `services/` and name in messages."""
    argv: list[str]
    """Command; `{port}`, `{host}` and `{output_dir}` are filled in."""
    url_key: str
    """Dotted configuration key that receives `http://HOST:PORT`; with replicas, the list of these."""
    replicas: int = 1
    """Servers of this command, each with a port and a folder of its own: `NAME_0`, `NAME_1`, ..."""
    remote_argv: tuple[str, ...] | None = None
    """What lets other hosts in, added to the command where replicas are spread over hosts; `{token_file}` is
    filled in: a secret of this start, readable by its owner. None: all are on the launcher's host."""
    token_variable: str = ""
    """Variable by which rollouts learn of that file."""
    health: str = "/health"
    """Path that answers 200 when the service is ready."""
    start_deadline_s: float = 60.0
    """From process start to a healthy answer."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables added to the launcher's."""
    note: str = ""
    """What was chosen for it, shown behind its address in the table of choices."""


@dataclass(frozen=True, kw_only=True)
class NamedService:
    """A server that the configuration names, so that the launcher starts none."""

    name: str
    """Name in messages."""
    url_key: str
    """Dotted configuration key that holds its address."""
    url: str
    """Its address."""
    ask: Callable[[], str]
    """Asks it whether it has what the run needs: what it serves, in a phrase for the table of choices. Raises
    ConfigError with one line for each thing that is wrong."""
    compares: bool = False
    """Whether `ask` compares what it serves with data of this run: then a resume may name another address."""


@dataclass(frozen=True, kw_only=True)
class ReportSection:
    """A part of the final report."""

    title: str
    """Heading."""
    rows: list[tuple[str, ...]] = field(default_factory=list)
    """Table rows as text; the first row is the header."""
    text: str = ""
    """Lines printed under the table."""


QUESTION, ANSWER, GOLD = "question", "answer", "gold"
"""Kinds of notes of a rollout as a whole that the page shows in its head, the question in its list too. Where
a domain says no question or answer, they are the first prompt's last turn of a user and the last text."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """A remark on a rollout, for the page that shows it."""

    text: str
    """What is said; it may hold text of the task, which stays in the run's folder."""
    kind: str
    """What it is about in a word or two, such as `web query` or `verdict`."""
    turn: int | None = None
    """The sample of the rollout that it belongs to, from 0; None: the rollout as a whole."""
    level: Literal["info", "good", "warn", "bad"] = "info"
    """How it is coloured."""
    spans: tuple[tuple[int, int], ...] = ()
    """Half-open ranges of `text` to be marked, such as a private value."""
    badge: str = ""
    """A word for the list of rollouts, where the note should be found by it, such as `answer leaked`."""


NotesOf = Callable[[str, Sequence[Mapping[str, Any]]], Sequence[Note]]
"""Notes of one rollout, by its name (`group/attempt`) and its records of the stream `actor` in step order,
each with one more field, `answer`: what was sampled, without special tokens."""


class BaseDomain:
    """A domain without extras: the defaults of every hook the core knows.

    All are called with the resolved tree; none may import torch.
    """

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

    def makes_data(self, cfg: DictConfig) -> bool:
        """Whether `prepare` makes what the loader reads, so that a validation cannot load it yet."""
        return type(self).prepare is not BaseDomain.prepare

    def start_over(self, cfg: DictConfig, output_dir: Path) -> None:
        """Remove what earlier runs of this folder keep elsewhere: `force_restart`, before `prepare`.

        Raises ValueError or OSError with one line.
        """

    def services(self, cfg: DictConfig) -> list[ServiceSpec]:
        """Servers to start. A service whose address is configured is left out."""
        return []

    def named_services(self, cfg: DictConfig) -> list[NamedService]:
        """Servers whose address is configured. They are asked right before a run with rollouts starts."""
        return []

    def validate(self, cfg: DictConfig) -> list[str]:
        """Problems found before anything starts, one line each with the remedy."""
        return []

    def validate_recipe(self, cfg: DictConfig) -> list[str]:
        """Problems of the bootstrap's recipe found before it trains anything, one line each with the remedy.

        `cfg.bootstrap.start` is the model that it begins with, or null for a new one.
        """
        return []

    def first_messages(self, cfg: DictConfig, problem: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The messages that a rollout of this problem begins with; None where that is not known beforehand.

        Their length and the model's chat template are then checked before anything starts.
        """
        return None

    def remedy(self, key: str) -> str | None:
        """What to do instead of a key of upstream's or a paper's configuration; None for others.

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

    def rollout_notes(self, output_dir: Path) -> NotesOf | None:
        """What the page of rollouts shows beside their samples; None: nothing.

        Called once for a page, so that files of the run are read once; the function it returns is called for
        each rollout that the page shows.
        """
        return None

    def demonstrations(self, cfg: DictConfig, seed: int, phase: str) -> Iterable[Any]:
        """`Demonstration`s (`pipelinerl.extras.bootstrap`) of one world, the same for equal arguments.

        `phase` is the name of one of `bootstrap.phases`. Raises NotImplementedError without any.
        """
        raise NotImplementedError(f"{type(self).__name__} has no demonstrations")

    def vocabulary(self) -> Sequence[str]:
        """Pieces of the domain's formats that a tokenizer trained for it keeps whole."""
        return ()


Domain = BaseDomain
"""What annotations call it."""


def problem_list(found: Any, what: str) -> list[dict[str, Any]]:
    """What a loader returned. Raises ValueError, beginning with `what`, for anything but a list of dicts."""
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise ValueError(f"{what} must return a list of dicts, got {type(found).__name__}")
    for problem in found:
        if not isinstance(problem, dict):
            kinds = f"{type(found).__name__} with a {type(problem).__name__}"
            raise ValueError(f"{what} must return a list of dicts, got a {kinds}")
    return list(found)


def no_module(name: str) -> str:
    """What is said of a module that is not there."""
    hint = "check the spelling or install it"
    if name.partition(".")[0] == "tapeagents":  # in older files of upstream
        hint = "Prompt and TrainableLLM are in pipelinerl.llm, whatever else is used of it is not here"
    return f"no module named {name}; {hint}"


def resolve_dotted(path: str, key: str) -> Any:
    """The object at a dotted path, of a module or of a class in one.

    Raises ConfigError naming `key` and what is missing.
    """
    module_name, _, attribute = path.rpartition(".")
    if not module_name:
        raise ConfigError(f"{key}={path}: not a dotted path; write package.module.name")
    try:
        module: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        module = _class_at(module_name) if error.name == module_name else None
        if module is None:
            raise ConfigError(f"{key}={path}: {no_module(str(error.name))}") from error
    except ImportError as error:
        raise ConfigError(f"{key}={path}: importing {module_name} failed: {error}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        public = [name for name in vars(module) if not name.startswith("_")]
        hint = suggestion(attribute, public)
        raise ConfigError(f"{key}={path}: {module_name} has no {attribute}; {hint}") from None


def import_dotted(path: str, key: str) -> Any:
    """`resolve_dotted` for a report: whatever the module does while it is imported is a ConfigError."""
    try:
        return resolve_dotted(path, key)
    except ConfigError:
        raise
    except Exception as error:
        why = f"importing it failed: {type(error).__name__}: {error}"
        raise ConfigError(f"{key}={path}: {why}") from None


def _class_at(path: str) -> type | None:
    """A class of a module, whose static and class methods a dotted path may name; None for anything else."""
    above, _, name = path.rpartition(".")
    found = getattr(sys.modules.get(above), name, None)  # the search for it has imported the module above
    return found if isinstance(found, type) else None


class CombinedDomain(BaseDomain):
    """Asks each domain in turn; what a recipe needs belongs to the model of one and is left out."""

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

    def makes_data(self, cfg: DictConfig) -> bool:
        return any(part.makes_data(cfg) for part in self.parts.values())

    def start_over(self, cfg: DictConfig, output_dir: Path) -> None:
        for part in self.parts.values():
            part.start_over(cfg, output_dir)

    def services(self, cfg: DictConfig) -> list[ServiceSpec]:
        return [spec for part in self.parts.values() for spec in part.services(cfg)]

    def named_services(self, cfg: DictConfig) -> list[NamedService]:
        return [service for part in self.parts.values() for service in part.named_services(cfg)]

    def validate(self, cfg: DictConfig) -> list[str]:
        return [problem for part in self.parts.values() for problem in part.validate(cfg)]

    def first_messages(self, cfg: DictConfig, problem: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Of the first domain that knows the problem as its own."""
        said = (part.first_messages(cfg, problem) for part in self.parts.values())
        return next((messages for messages in said if messages is not None), None)

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

    def rollout_notes(self, output_dir: Path) -> NotesOf | None:
        """Each domain is asked about every rollout; one that does not know it says nothing."""
        asked = [notes for part in self.parts.values() if (notes := part.rollout_notes(output_dir))]
        return lambda rollout, records: [note for notes in asked for note in notes(rollout, records)]


def parts_of(domain: Domain) -> Sequence[Domain]:
    """The domains behind a combined one, or the domain itself."""
    return list(domain.parts.values()) if isinstance(domain, CombinedDomain) else [domain]


def load_domain(path: str | Sequence[str] | None) -> Domain:
    """The hooks named by `domain_hooks`; a class is instantiated, null gives the defaults, a list all.

    Raises ConfigError if a path leads nowhere or to something that is no domain.
    """
    if path is None:
        return BaseDomain()
    if isinstance(path, Sequence) and not isinstance(path, str):
        return CombinedDomain({str(each): load_domain(str(each)) for each in path})
    found = resolve_dotted(str(path), "domain_hooks")
    domain = found() if isinstance(found, type) else found
    if not isinstance(domain, Domain):
        raise ConfigError(
            f"domain_hooks={path}: {type(domain).__name__} is no domain, subclass domain.BaseDomain"
        )
    return domain
