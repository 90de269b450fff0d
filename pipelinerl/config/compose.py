"""Composition of the tree, what is stronger last.

schema < base < hardware < domain < domain on this hardware < chosen files (`+preset=NAME`, `finetune=grpo`) <
keys of the command line
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel
from yaml import YAMLError

from pipelinerl.base.errors import ConfigError, first_line, suggestion
from pipelinerl.base.masking import MASK
from pipelinerl.config.base import leaves_of
from pipelinerl.config.choice import Choice
from pipelinerl.config.detect import visible_devices
from pipelinerl.config.hydra_files import (
    check_aliases,
    file_order,
    files,
    for_hydras_launcher,
    in_one_line,
    in_subfolder,
)
from pipelinerl.config.installed import conf_dir, installed_conf_dirs, resolve_bundled
from pipelinerl.config.keys import apply, brought_keys, check_interpolations, leaves
from pipelinerl.config.legacy import (
    as_upstream_reads,
    leave_out_unread,
    not_yaml,
    of_hydras_launcher,
    settle,
    whole_tree,
)
from pipelinerl.config.origins import Layer, chain, decided, file_name, layer, origin
from pipelinerl.config.secrets import names_secret
from pipelinerl.config.tree import Config
from pipelinerl.config.variants import HOST_BACKENDS

BASE = "base"
ON_HARDWARE = "domain_hardware"
"""Group of what a domain has for one kind of hardware; chosen by both, never by the user."""
_SHOWN = 12
"""Most keys that one line names."""


@dataclass(frozen=True, kw_only=True)
class Composition:
    """The composed tree and what was decided without being asked.

    Nobody writes into it: what the launcher chooses besides is a list of choices (`launcher/plan.py`).
    """

    tree: DictConfig
    """Interpolations are kept; `output_dir` may still be null."""
    user_keys: list[str]
    """Keys that the command line set."""
    devices: list[str]
    """Ids of the visible GPUs."""
    datasets_named: bool = True
    """Whether the command line, a domain or a user's file names datasets."""
    notices: tuple[str, ...] = ()
    """One line per key of a file that was left out, and per name that might have meant something else."""
    choices: tuple[Choice, ...] = ()
    """Values of the tree that nobody asked for by name."""
    layers: tuple[Layer, ...] = ()
    """What each file writes, the weakest first."""

    def origin(self, *keys: str) -> str:
        """Which files gave keys that the command line did not set, or the keys whose values these have."""
        return origin(self.layers, map(self.source, keys))

    def source(self, key: str) -> str:
        """The key whose value the files give a key: another one or itself."""
        return chain(self.layers, key)[-1]

    def decided(self, key: str) -> bool:
        """Whether a domain's, a preset's, the hardware's or the user's file leaves no choice of a key."""
        return decided(self.layers, key)

    def given(self, key: str) -> str | None:
        """The key of the command line that decides a key: itself, or the one whose value a file gives it."""
        return next((one for one in chain(self.layers, key) if one in self.user_keys), None)


@in_one_line()
def compose(
    given: Sequence[str] = (), config_name: str | None = None, config_dir: Path | None = None
) -> Composition:
    """Compose the tree. Raises ConfigError, one line per problem, for anything hydra would refuse.

    `given` are hydra's overrides, `+domain=NAME` among them; `config_name` is None for `base`, and
    `config_dir` is searched before the bundled configurations.
    """
    own = [] if config_dir is None else [config_dir]
    roots = [*own, *installed_conf_dirs(), conf_dir()]
    if not roots[0].is_dir():
        raise ConfigError(f"--config-dir {roots[0]}: no such folder")
    check_aliases(roots[:-1])
    overrides = _parse(given)
    asked_for = (config_name or BASE).removesuffix(".yaml")
    config_name, domain = _names(asked_for, overrides, roots)
    devices = visible_devices()
    hardware = _hardware_of(overrides, roots) or ("gpu" if devices else "cpu")
    groups, values = _split(overrides, roots)
    groups, choices = _between_hosts(groups, values)
    _check_kind(groups, hardware, roots)

    layers = [f"+domain={domain}"] if domain else []
    if _config_file(roots, ON_HARDWARE, f"{domain}_{hardware}"):
        layers.append(f"+{ON_HARDWARE}={domain}_{hardware}")
    domain_file = _config_file(roots, "domain", domain) if domain else None
    brought = brought_keys(_load(domain_file), domain_file) if domain_file else []
    given_values = {one.key_or_group: one.value() for one in values}
    asked = _Asked(config_name, f"hardware={hardware}", groups, layers, given_values)
    tree, of_file, notices, written, foreign = _from_files(roots, asked)
    brought += [key for key in of_file if key not in brought]
    if config_name != asked_for:
        notices.append(
            f"--config-name={domain}: taken as +domain={domain}, the domain of that name here; "
            "a file of upstream is found with --config-dir FOLDER"
        )
    apply(tree, values, brought)
    _one_spelling(tree)
    _check_sections(tree)
    check_interpolations(tree)  # before anything below reads a value
    with open_dict(tree):
        tree.domain_name = tree.get("domain_name") or domain
        tree.domain_keys = brought
        named = _name_datasets(tree)
        if foreign:
            notices += leave_out_unread(tree, asked.given)
        if not OmegaConf.is_missing(tree, "model_path") and isinstance(tree.model_path, str):
            tree.model_path = resolve_bundled(tree.model_path)
        taught = OmegaConf.select(tree, "teacher.model_path")
        if isinstance(taught, str):
            tree.teacher.model_path = resolve_bundled(taught)
    return Composition(
        tree=tree,
        user_keys=[o.key_or_group for o in overrides],
        devices=devices,
        datasets_named=named,
        notices=tuple(notices),
        choices=choices,
        layers=tuple(written),
    )


@dataclass(frozen=True)
class _Asked:
    """What chooses the files of a composition."""

    config_name: str
    hardware: str
    """The profile, as an override."""
    groups: list[str]
    """Further choices, as overrides."""
    layers: list[str]
    """The domain, and the domain on this hardware, as overrides."""
    given: dict[str, Any]
    """What the command line sets, by key."""


_Read = tuple[DictConfig, list[str], list[str], list[Layer], bool]


def _from_files(roots: Sequence[Path], asked: _Asked) -> _Read:
    """The tree of all files, the keys that the user's own brings as a domain, what is left out, the files.

    Last, whether they are a whole tree of upstream's.
    """
    name, choices = asked.config_name, [asked.hardware, *asked.groups, *asked.layers]
    primary = _config_file(roots, "", name)
    own = None if primary is None or primary.is_relative_to(conf_dir()) else primary
    plain, said = None, list[str]()
    if own is not None:
        whole = whole_tree(own)
        if whole is not None and "hydra" in _load(own):
            said += of_hydras_launcher(for_hydras_launcher(roots, name, []))
        elif whole is None:
            plain = _with_hardware(roots, asked)
            with_choices = choices if plain is not None else [*asked.groups, *asked.layers]
            said += of_hydras_launcher(for_hydras_launcher(roots, name, with_choices))
            said += _laid_over(roots, asked, own)
            if plain is None:  # upstream's, with its own base
                whole, choices = files(roots, name, with_choices), [asked.hardware]
        if whole is not None:
            _one_spelling(whole)
            notices = [*said, *as_upstream_reads(whole, asked.given), *settle(whole, asked.given)]
            bundled = [root for root in roots if not _has_base(root)]
            below = [*bundled, conf_dir()]
            tree = _over(_compose(below, BASE, choices), whole, f"{own}: ")
            layers = [
                *_layers(below, replace(asked, config_name=BASE), choices, None),
                layer(own.name, whole),
            ]
            return tree, brought_keys(whole, own), notices, layers, True
    tree = _compose(roots, name, choices)
    if asked.groups:  # hydra puts hardware and domain over them
        for key, value in leaves(_written(roots, asked)).items():
            OmegaConf.update(tree, key, value, force_add=True)
    notices = [*said, *settle(tree, asked.given)]
    named = plain is not None and any(
        OmegaConf.select(plain, key, throw_on_resolution_failure=False)
        for key in ("dataset_loader", "actor.rollout_policy")
    )
    brought = brought_keys(tree, own) if own is not None and named else []
    return tree, brought, notices, _layers(roots, asked, choices, own), False


def _laid_over(roots: Sequence[Path], asked: _Asked, own: Path) -> list[str]:
    """A line about values of the user's file that `+domain`, which hydra puts over it, replaces."""
    if asked.config_name == BASE or not asked.layers:
        return []
    below = file_order(roots, asked.config_name, [])
    domain, theirs = list[Layer](), list[Layer]()
    for one in file_order(roots, asked.config_name, asked.layers):
        path = _config_file(roots, "", str(one.config_path).removesuffix(".yaml"))
        if path is not None and (one not in below or not path.is_relative_to(conf_dir())):
            into = theirs if one in below else domain
            into.append(layer(path.name, _load(path), one.package or ""))
    # Of several files of each the strongest, which is the last, counts.
    wanted, put = ({k: v for one in some for k, v in leaves_of(one.content)} for some in (theirs, domain))
    both = wanted.keys() & put.keys() - asked.given.keys()
    lost = sorted(key for key in both if put[key] != wanted[key])
    if not lost:
        return []
    shown, hooks = ", ".join(lost[:_SHOWN]), put.get("domain_hooks")
    more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
    instead = f" and give domain_hooks={hooks}" if hooks else ""
    return [
        f"{asked.layers[0]} lies over {own.name} and replaces its values of {shown}{more}; to keep these, "
        f"leave it out{instead}"
    ]


def _layers(roots: Sequence[Path], asked: _Asked, choices: list[str], own: Path | None) -> list[Layer]:
    """The files of a composition, the weakest first; chosen ones lie over the domain."""
    chosen, found = [_chosen(choice) for choice in asked.groups], list[tuple[bool, Layer]]()
    for one in file_order(roots, asked.config_name, choices):
        path = _config_file(roots, "", str(one.config_path).removesuffix(".yaml"))
        if path is not None:
            place = _chosen_for(str(one.config_path), chosen)
            name = file_name(place, chosen, path, path != own and path.is_relative_to(conf_dir()))
            found.append((place in chosen, layer(name, _load(path), one.package or "")))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def _chosen_for(place: str, chosen: Sequence[str]) -> str:
    """The chosen file that a file of its group came with, such as `finetune/ppo`; `place` for any other."""
    group, _, name = place.rpartition("/")
    if place in chosen or name == BASE:  # which is there whatever is chosen
        return place
    return next((one for one in chosen if one.rpartition("/")[0] == group), place)


def _with_hardware(roots: Sequence[Path], asked: _Asked) -> DictConfig | None:
    """The primary file alone; None if it is not composed of our base: upstream's has no `hardware`."""
    try:
        return _compose(roots, asked.config_name, [asked.hardware])
    except ConfigError as error:
        if "Could not override 'hardware'" not in str(error):
            raise
        return None


def _has_base(root: Path) -> bool:
    return (root / f"{BASE}.yaml").is_file()


def _parse(texts: Sequence[str]) -> list[Override]:
    try:
        parsed = OverridesParser.create().parse_overrides(list(texts))
    except OverrideParseException as error:
        key, given, _ = error.override.partition("=")
        told = f"{key}={MASK}" if given and names_secret(key) else repr(error.override)
        raise ConfigError(
            f"{told}: not an override; write key=value, and quote values with spaces or ="
        ) from None
    for override in parsed:
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line}: sweeps are not supported; start one run per value")
    return parsed


def _names(config_name: str, overrides: Sequence[Override], roots: Sequence[Path]) -> tuple[str, str | None]:
    """The primary configuration and the domain, which `--config-name` may name instead of `+domain`."""
    domain = _domain_of(overrides, roots)
    primary = _config_file(roots, "", config_name)
    if config_name == BASE or primary:
        if primary and (refusal := in_subfolder(config_name, primary, roots[0])):
            raise ConfigError(refusal)
        return config_name, domain
    if not _config_file(roots, "domain", config_name):
        names = _options(roots, "") + _options(roots, "domain")
        raise ConfigError(
            f"--config-name={config_name}: no such configuration; " + suggestion(config_name, names)
        )
    if domain not in (None, config_name):
        raise ConfigError(f"--config-name={config_name} and +domain={domain} differ; name the domain once")
    return BASE, config_name


def _domain_of(overrides: Sequence[Override], roots: Sequence[Path]) -> str | None:
    chosen: str | None = None
    for override in overrides:
        if override.key_or_group != "domain":
            continue
        name = str(override.value())
        _check_choice(roots, "domain", name, f"+domain={name}: no such domain")
        if not override.is_add():
            raise ConfigError(f"domain={name}: write +domain={name}, with the plus sign")
        if chosen is not None:
            raise ConfigError(f"+domain={name}: a domain was already chosen (+domain={chosen}); name one")
        chosen = name
    return chosen


def _hardware_of(overrides: Sequence[Override], roots: Sequence[Path]) -> str | None:
    chosen = list(dict.fromkeys(str(o.value()) for o in overrides if o.key_or_group == "hardware"))
    for name in chosen:
        _check_choice(roots, "hardware", name, f"hardware={name}: no such profile")
    if len(chosen) > 1:
        raise ConfigError(f"hardware={chosen[1]}: hardware={chosen[0]} was already chosen; name one")
    return chosen[0] if chosen else None


def _split(overrides: Sequence[Override], roots: Sequence[Path]) -> tuple[list[str], list[Override]]:
    """Group choices other than domain and hardware, as text; and value overrides."""
    groups, values = [], []
    for override in overrides:
        key = override.key_or_group
        if key == ON_HARDWARE:
            raise ConfigError(
                f"{override.input_line}: chosen by +domain and hardware; set the keys themselves"
            )
        if key in ("domain", "hardware"):
            continue
        is_folder = any((root / key).is_dir() for root in roots)
        if is_folder and not isinstance(override.value(), dict) and not override.is_delete():
            _check_choice(roots, key, str(override.value()), f"{key}={override.value()}: no such choice")
            groups.append(str(override.input_line))
        else:
            values.append(override)
    return groups, values


def _between_hosts(groups: list[str], values: Sequence[Override]) -> tuple[list[str], tuple[Choice, ...]]:
    """The choices, with a server for streams where several hosts are asked for and nothing about streams."""
    given = {one.key_or_group: one for one in values}
    chosen = "streams.backend" in given or any(one.lstrip("+").startswith("streams=") for one in groups)
    backend = given["world.backend"].value() if "world.backend" in given else None
    if chosen or backend is None or not HOST_BACKENDS.find(str(backend)).several:
        return groups, ()
    return [*groups, "streams=redis"], (Choice("streams.backend", "redis", f"world.backend={backend}"),)


def _check_choice(roots: Sequence[Path], group: str, name: str, refusal: str) -> None:
    if not _config_file(roots, group, name):
        raise ConfigError(f"{refusal}; {suggestion(name, _options(roots, group))}")


def _check_kind(groups: Sequence[str], hardware: str, roots: Sequence[Path]) -> None:
    """A chosen file that sets `hardware.kind` is for that kind only. Raises ConfigError on the other."""
    profile = _config_file(roots, "hardware", hardware)
    assert profile is not None
    kind = OmegaConf.select(_load(profile), "hardware.kind")
    for choice in groups:
        file = _config_file(roots, "", _chosen(choice))
        wanted = None if file is None else OmegaConf.select(_load(file), "hardware.kind")
        if wanted not in (None, kind):
            raise ConfigError(
                f"{choice}: made for hardware={wanted}, this is hardware={hardware}; "
                f"set hardware={wanted} or leave {choice} out"
            )


def _chosen(choice: str) -> str:
    """The path of a choice below a root, without suffix: `preset/NAME` of `+preset=NAME`."""
    return choice.lstrip("+").replace("=", "/", 1)


def _config_file(roots: Sequence[Path], group: str, name: str) -> Path | None:
    found = (root / group / f"{name}.yaml" for root in roots)
    return next((path for path in found if path.is_file()), None)


def _options(roots: Sequence[Path], group: str) -> list[str]:
    return sorted({path.stem for root in roots for path in (root / group).glob("*.yaml")})


def _load(path: Path) -> DictConfig:
    try:
        loaded = OmegaConf.load(path)
    except YAMLError as error:
        raise ConfigError(not_yaml(error)) from None
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{path}: holds no keys; write KEY: VALUE lines")
    return loaded


def _compose(roots: Sequence[Path], config_name: str, overrides: list[str]) -> DictConfig:
    """The files over the defaults of the schema."""
    return _over(_schema(), files(roots, config_name, overrides))


def _schema() -> DictConfig:
    return OmegaConf.create(Config.defaults())


def _over(tree: DictConfig, above: DictConfig, source: str = "") -> DictConfig:
    """A tree from files over another one. Raises ConfigError for sections of another kind."""
    for one in (tree, above):
        OmegaConf.set_struct(one, False)
    try:
        merged = OmegaConf.merge(tree, above)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{source}{first_line(error)}") from None
    assert isinstance(merged, DictConfig)
    _one_spelling(merged)
    OmegaConf.set_struct(merged, True)
    return merged


def _one_spelling(tree: DictConfig) -> None:
    """Join flags of vLLM that are there with `-` and with `_`, which vLLM takes for the same.

    The later one counts, as on vLLM's command line, under the name of the first, which other keys refer to.
    """
    flags = OmegaConf.select(tree, "vllm_config.vllm_kwargs", throw_on_resolution_failure=False)
    if not isinstance(flags, DictConfig):
        return
    names: dict[str, Any] = {}
    with open_dict(flags):
        for name, value in list(flags.items_ex(resolve=False)):
            first = names.setdefault(str(name).replace("_", "-"), name)
            if first != name:
                flags[first] = value
                del flags[name]


def _written(roots: Sequence[Path], asked: _Asked) -> DictConfig:
    """What the chosen files and the files in their lists of defaults write, whatever the value.

    Comparing values with those of the base would not do: a file that writes the usual value asks for it.
    A file that the base is made of (`finetune/grpo` builds on `finetune/base`) counts only if it was chosen
    itself: domains build on it too, and what they set over it is theirs.
    """
    base = [(one.config_path, one.package) for one in file_order(roots, asked.config_name, [asked.hardware])]
    named = [_chosen(choice) for choice in asked.groups]
    written = OmegaConf.create({})
    for one in file_order(roots, asked.config_name, [asked.hardware, *asked.groups]):
        if (one.config_path, one.package) in base and one.config_path not in named:
            continue
        file = _config_file(roots, "", str(one.config_path).removesuffix(".yaml"))
        if file is not None:
            content = _load(file)
            content.pop("defaults", None)
            OmegaConf.update(written, one.package, content) if one.package else written.merge_with(content)
    return written


def _name_datasets(tree: DictConfig) -> bool:
    """A loader that nobody gave a name to is asked for `train` and `test`; whether somebody did."""
    keys = ("train_dataset_names", "test_dataset_names")
    unnamed = all(tree.get(key) is None for key in keys)
    for key in keys:
        if tree.get(key) is None:
            tree[key] = [key.partition("_")[0]] if unnamed else []
    return not unnamed


def _check_sections(tree: DictConfig) -> None:
    """Raises ConfigError for sections that are null, before anything reads a key of one."""
    kinds = {name: known.annotation for name, known in Config.model_fields.items() if name in tree}
    sections = [
        name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, BaseModel)
    ]
    null = [n for n in sections if not OmegaConf.is_interpolation(tree, n) and tree[n] is None]
    if null:
        raise ConfigError([f"{n}=null: a section of keys; leave it out, or set {n}.KEY=VALUE" for n in null])
