"""Everything that can be found wrong before a process starts."""

from collections.abc import Iterator, Sequence

from omegaconf import MISSING, DictConfig, OmegaConf
from pydantic import ValidationError

from pipelinerl.base.errors import ConfigError, explain
from pipelinerl.config.files import typed
from pipelinerl.config.hosts import Host
from pipelinerl.config.installed import conf_dir
from pipelinerl.config.keys import leaves
from pipelinerl.config.machine import DerivedConfig
from pipelinerl.config.tree import Config
from pipelinerl.domain import Domain, parts_of
from pipelinerl.launcher import fitting_weights, resumed
from pipelinerl.launcher.checks import (
    data,
    environments,
    inert,
    machine,
    objective,
    partial,
    sampling,
    several_hosts,
    teacher,
    training,
)
from pipelinerl.launcher.decoder_shape import decoder_shape, model_config
from pipelinerl.launcher.placement import derive, layout
from pipelinerl.launcher.plan import resolved
from pipelinerl.launcher.trainer_memory import undivided


def checked(
    tree: DictConfig,
    domain: Domain,
    hosts: Sequence[Host],
    dry_run: bool = False,
    given: Sequence[str] = (),
) -> Config:
    """The typed tree, or ConfigError with every problem found, one line each.

    `hosts` are those of the run. `given` are the keys that the command line set: none of them may be
    without effect.
    """
    missing = sorted(key for key, value in leaves(tree).items() if value == MISSING)
    if missing:  # what a profile leaves to the user
        raise ConfigError([f"{key}: missing; set {key}=VALUE" for key in missing])
    if not str(tree.model_path or "").strip():
        named = "model_path" if tree.model_path is None else f"model_path={tree.model_path}"
        raise ConfigError(_no_model(named, str(tree.hardware.kind), tree.get("domain_name")))
    cfg = typed(tree)
    found = [*problems(cfg, hosts, dry_run), *domain_problems(tree, domain)]
    found += resumed.check(cfg, _compared_addresses(tree, domain))
    found += resumed.lost_inputs(tree, domain.folders)
    found += inert.check(cfg, given, domain)
    if not found and not dry_run:  # it asks engines, which a wrong configuration need not have
        found += partial.of_another_model(cfg, len(layout(cfg, hosts).engines))
    if found:
        raise ConfigError(dict.fromkeys(found))
    return cfg


def _compared_addresses(tree: DictConfig, domain: Domain) -> frozenset[str]:
    """Keys of services that the user named and whose content each start compares with the run's data."""
    try:
        return frozenset(one.url_key for one in domain.named_services(resolved(tree)) if one.compares)
    except ValueError:  # the domain's settings are wrong, which is another line
        return frozenset()


def _no_model(named: str, kind: str, domain: str | None) -> str:
    """What a user without a model can do: bring one, make one, or play with the bundled one."""
    said = f"{named}: missing on hardware={kind}; set model_path to a folder or a hub name (OWNER/MODEL)"
    if domain is not None and (conf_dir() / "preset" / f"{domain}_from_scratch.yaml").is_file():
        preset = f"+domain={domain} +preset={domain}_from_scratch"
        said += f", or make one: python -m pipelinerl.bootstrap {preset}, then launch with this preset"
    if domain is None or not (conf_dir() / "domain_hardware" / f"{domain}_cpu.yaml").is_file():
        return said
    bundled = "leave model_path out" if kind == "cpu" else "hardware=cpu"
    return f"{said}, or play with the bundled small model: {bundled}"


def problems(cfg: Config, hosts: Sequence[Host], dry_run: bool = False) -> Iterator[str]:
    """Problems of the core's own keys; `hosts` are those of the run."""
    places, derived, unplaceable = None, None, list[str]()
    try:  # the trainer's devices decide how many samples a step has
        places = layout(cfg, hosts)
        derived = derive(cfg, places.trainer_jobs if "finetune" in cfg.debug.roles else [])
    except ValueError as error:  # a ConfigError, or a parallel size that is no number
        unplaceable = [str(error)]
    yield from data.check(cfg, dry_run)
    if "finetune" in cfg.debug.roles:
        yield from data.named(cfg.model_path, fitting_weights.check(cfg.model_path))
    yield from sampling.check(cfg)
    yield from objective.check(cfg)
    yield from teacher.check(cfg, dry_run)
    yield from training.check(cfg, derived, dry_run)
    if derived is not None and cfg.updates_engines:
        asked = derive(cfg, []).texts_per_update
        yield from cfg.staleness_with(derived).problems(asked, derived.trainer_ranks)
    if derived is not None:
        yield from _rows_over_ranks(cfg, derived)
    if places is not None:
        yield from _more_than_there_are(cfg, len(places.engines))
    yield from unplaceable
    yield from machine.check(cfg, hosts, dry_run)
    yield from several_hosts.check(cfg, hosts)
    yield from environments.check(cfg)
    yield from partial.check(cfg)


def _more_than_there_are(cfg: Config, engines: int) -> Iterator[str]:
    least = cfg.engine.min_alive
    if least > engines and "actor_llm" in cfg.debug.roles and not cfg.debug.use_existing_llms:
        yield f"engine.min_alive={least}: this run has {engines} in all; set {engines} or fewer"


def _rows_over_ranks(cfg: Config, derived: DerivedConfig) -> Iterator[str]:
    """Rows that cannot be divided over the ranks; the trainer itself looks at models that are not known."""
    size = cfg.finetune.seq_parallel
    if size > 1 and "finetune" in cfg.debug.roles:
        shape = decoder_shape(model_config(cfg.policy_path, ask_hub=False))
        problem = undivided(size, derived.trainer_ranks, shape)
        yield from [] if problem is None else [problem]


def domain_problems(tree: DictConfig, domain: Domain) -> Iterator[str]:
    """Problems of each domain's block: unknown keys and wrong values, or else what its own checks find."""
    for part in parts_of(domain):
        if part.settings is not None and part.settings_key is not None:
            block = tree.get(part.settings_key)
            values = {} if block is None else OmegaConf.to_container(block, resolve=True)
            try:
                part.settings.model_validate(values)
            except ValidationError as error:
                yield from explain(error, part.settings, part.settings_key, part.remedy)
                continue
        yield from part.validate(tree)
