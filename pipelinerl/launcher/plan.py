"""What a run is, as one frozen value: everything that follows from a configuration and the hosts.

`pipelinerl.launch` calls `choose` before it checks the configuration, and `launcher/start.py` calls `plan`
once the domain has prepared its data, or for `validate=true` before. The table of choices, the saved
configuration, every `start.sh` and the processes are read from the plan. Neither function writes anywhere:
choices are values, and this file applies them, to a copy of the composed tree.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.base import leaves_of
from pipelinerl.config.card_limit import EngineReads
from pipelinerl.config.choice import Choice, with_choices
from pipelinerl.config.compose import Composition
from pipelinerl.config.files import typed
from pipelinerl.config.hosts import Host
from pipelinerl.config.machine import Job, roles_of
from pipelinerl.config.secrets import Place, secrets_of
from pipelinerl.config.tree import Config
from pipelinerl.config.variants import STREAM_BACKENDS
from pipelinerl.domain import BaseDomain, Domain, NamedService, ServiceSpec
from pipelinerl.launcher.cards import CardOf, card_memory
from pipelinerl.launcher.commands import commands
from pipelinerl.launcher.memory_choice import Chosen, choose_memory
from pipelinerl.launcher.memory_values import MemoryPlan
from pipelinerl.launcher.placement import STREAMS_SERVICE, derive, place
from pipelinerl.launcher.routing_choice import RoutingChoice, choose_routing
from pipelinerl.launcher.services import is_spread
from pipelinerl.launcher.supervision import ChildSpec
from pipelinerl.launcher.trainer_choice import TrainerChoice, choose_trainer
from pipelinerl.streams.kind import streams_kind

NO_ADDRESS = "no address is configured"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the run's folder, its domain and the user's servers say; planning asks none of them."""

    dry_run: bool = False
    """Perhaps on another machine: neither hub nor cards are asked."""
    attempt: int = 0
    """How often the folder's run has been started before."""
    checkpoint: Path | None = None
    """What engines and trainer load instead of the model."""
    changed: tuple[str, ...] = ()
    """What a resume trains or samples otherwise than the last start, for people (`resumed.compared`)."""
    prepared: Mapping[str, Any] = field(default_factory=dict)
    """Values by dotted key that the domain's `prepare` gave."""
    named: tuple[tuple[NamedService, str], ...] = ()
    """Servers that the user named, and what they say they serve."""
    password: str = ""
    """For a redis server that the launcher starts for several hosts and that nobody gave a password."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Everything derived from a configuration and the hosts. Equal inputs give equal plans."""

    configuration: Composition
    """What files and command line say."""
    hosts: tuple[Host, ...]
    choices: tuple[Choice, ...]
    """What was chosen beside it, in the order in which it is applied."""
    tree: DictConfig
    """The resolved configuration, which is saved and handed to the processes; read-only."""
    cfg: Config
    """The same, typed: `jobs` are the processes, `derived` what else follows from placement."""
    memory: MemoryPlan | None
    """Bytes of each card; None where nothing is known of model or cards."""
    trainer: TrainerChoice
    routing: RoutingChoice
    services: tuple[ServiceSpec, ...]
    """Servers that the launcher starts for the domain."""
    facts: Facts
    problems: str = ""
    """What was said of the problems that the loader gave, if they were looked at."""

    @property
    def output_dir(self) -> Path:
        """Folder of the run."""
        return Path(str(self.cfg.output_dir))

    @property
    def reasons(self) -> dict[str, str]:
        """Why chosen keys have their values."""
        return {one.key: one.because for one in (*self.configuration.choices, *self.choices)}

    @property
    def spread(self) -> list[str]:
        """Names of the domain's servers that take turns over the hosts, and so need a token."""
        return [spec.name for spec in self.services if is_spread(spec, self.services, self.hosts)]

    @cached_property
    def children(self) -> list[ChildSpec]:
        """What is executed, one for each process."""
        facts = self.facts
        return commands(self.cfg, self.output_dir, self.services, self.hosts, facts.checkpoint, facts.dry_run)

    @cached_property
    def secrets(self) -> dict[Place, Any]:
        """The secret values of the tree, which nothing shows."""
        return secrets_of(self.tree)


def run_folder(tree: DictConfig) -> Path:
    """The absolute folder of the run; `results/<domain>/<date-time>` by default."""
    given = tree.get("output_dir")
    default = (
        Path("results") / (tree.get("domain_name") or "run") / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    )
    return Path(str(given) if given else default).expanduser().absolute()


def choose(
    configuration: Composition, hosts: Sequence[Host], output_dir: Path, dry_run: bool = False
) -> Chosen:
    """What is chosen before the configuration is checked. Raises as `choose_memory`."""
    given = configuration.tree.get("output_dir")
    folder = Choice("output_dir", str(output_dir), "the whole path of what was given" if given else "default")
    tree = with_choices(configuration.tree, [folder])
    found = choose_memory(replace(configuration, tree=tree), hosts, dry_run)
    return replace(found, configuration=configuration, choices=(folder, *found.choices))


def plan(
    configuration: Composition | Chosen,
    hosts: Sequence[Host],
    facts: Facts = Facts(),
    domain: Domain = BaseDomain(),  # noqa: B008 - without state
    free: Callable[[int, int], bool] = lambda host, port: True,
) -> RunPlan:
    """Place every process and derive what follows.

    `free` says whether a host (by its rank) may use a port. Raises ConfigError for what does not fit, and for
    what the checks of a start (`launcher/validate.py`) would have found.
    """
    if isinstance(configuration, Composition):
        folder = run_folder(configuration.tree)
        configuration = choose(configuration, hosts, folder, facts.dry_run)
    name = configuration.tree.domain_name or "the domain"
    choices = [
        *configuration.choices,
        *(Choice(key, value, f"prepared by {name}") for key, value in facts.prepared.items()),
    ]
    composed = configuration.configuration.tree
    tree = with_choices(composed, choices) if facts.prepared else configuration.tree
    services, cfg = _missing_services(tree, domain), typed(tree)
    spread = [spec.name for spec in services if is_spread(spec, services, hosts)]
    jobs = place(cfg, hosts, [spec.name for spec in services], free, spread)
    addresses = _addresses(cfg, services, jobs, hosts, facts.password)
    choices += addresses
    memory = configuration.memory
    prepared = [choice for choice in choices if choice.key in facts.prepared]
    filled = _filled(composed, [*prepared, *addresses])
    derived = derive(cfg, jobs).model_copy(update={"engine_reads": _reads(memory), "filled": filled})
    choices += [
        Choice("attempt", facts.attempt, "earlier starts of this folder"),
        Choice("jobs", [job.model_dump() for job in jobs], "placement"),
        Choice("derived", derived.model_dump(), "keys and placement"),
    ]
    placed = cfg.model_copy(update={"jobs": jobs, "derived_": derived})
    trainer = _trainer(placed, hosts, memory, facts.dry_run)
    routing = choose_routing(placed, facts.dry_run)
    choices += [*trainer.choices, routing.choice]
    tree = with_choices(composed, choices)
    OmegaConf.set_readonly(tree, True)
    return RunPlan(
        configuration=configuration.configuration,
        hosts=tuple(hosts),
        choices=tuple(choices),
        tree=tree,
        cfg=typed(tree),
        memory=memory,
        trainer=trainer,
        routing=routing,
        services=tuple(services),
        facts=facts,
    )


def _reads(memory: MemoryPlan | None) -> EngineReads | None:
    """What an engine of the plan reads, and whether the trainer's cards can say how fast."""
    if memory is None or memory.engine is None or memory.engine.reads is None:
        return None
    alike = memory.trainer is not None and memory.trainer_card.name == memory.card.name != ""
    return memory.engine.reads.model_copy(update={"trainer_alike": alike})


def _filled(tree: DictConfig, choices: Sequence[Choice]) -> dict[str, Any]:
    """Values before these choices of their keys and of all that refer to them; None where there was none."""
    found = ((key, OmegaConf.select(tree, key)) for key, _, _ in choices)
    given = {key: OmegaConf.to_container(one) if OmegaConf.is_config(one) else one for key, one in found}
    before, after = (dict(leaves_of(_plain(one))) for one in (tree, with_choices(tree, choices)))
    return {key: before.get(key) for key, value in after.items() if value != before.get(key)} | given


def _trainer(cfg: Config, hosts: Sequence[Host], memory: MemoryPlan | None, dry_run: bool) -> TrainerChoice:
    """What the trainer compiles and recomputes; its cards are those of the memory plan, if there is one."""
    devices = next((hosts[job.node_rank].devices for job in cfg.jobs_of("finetune")), ())
    card_of: CardOf = (lambda device: memory.trainer_card) if memory is not None else card_memory
    return choose_trainer(cfg, devices, dry_run, card_of, None if memory is None else memory.trainer)


def resolved(tree: DictConfig) -> DictConfig:
    """A copy without interpolations, for code of a domain, which may write into it."""
    plain = OmegaConf.create(_plain(tree))
    assert isinstance(plain, DictConfig)
    return plain


def _plain(tree: DictConfig) -> Any:
    return OmegaConf.to_container(tree, resolve=True)


def _missing_services(tree: DictConfig, domain: Domain) -> list[ServiceSpec]:
    """Services whose address the user did not configure, if this run has rollouts at all."""
    if "actor" not in roles_of(str(tree.debug.mode)):
        return []
    specs = [one for spec in domain.services(resolved(tree)) for one in _replicas(spec)]
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


def _addresses(
    cfg: Config, services: Sequence[ServiceSpec], jobs: Sequence[Job], hosts: Sequence[Host], password: str
) -> list[Choice]:
    """The address of each service by its key, a list where several have the same key; and that of redis."""
    servers = {job.name: job for job in jobs if job.kind == "service"}
    found: dict[str, list[str]] = {}
    for spec in services:
        found.setdefault(spec.url_key, []).append(servers[spec.name].url)
    chosen = [Choice(key, urls if len(urls) > 1 else urls[0], NO_ADDRESS) for key, urls in found.items()]
    if streams_kind(cfg.streams).starts_server(cfg.streams):
        redis = servers[STREAMS_SERVICE]
        chosen += [
            Choice("streams.host", redis.hostname, NO_ADDRESS),
            Choice("streams.port", redis.port, "the first free one"),
        ]
        if cfg.streams.password is None:  # on one host its other users reach the server too
            chosen.append(Choice("streams.password", password, "made for this start"))
    return chosen
