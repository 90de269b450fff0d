"""Composition of the tree: base < hardware < domain < domain on this hardware < command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from pipelinerl.config.detect import visible_devices
from pipelinerl.config.errors import ConfigError, nearest, suggestion
from pipelinerl.config.paths import conf_dir, resolve_bundled
from pipelinerl.config.removed import remedy_for
from pipelinerl.config.tree import Config

BASE = "base"
INTERNAL_GROUPS = ("domain_hardware",)
OPEN_SECTIONS = ("", "actor")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asked for."""

    overrides: list[str] = field(default_factory=list)
    """hydra overrides, `+domain=NAME` among them."""
    config_name: str | None = None
    """`--config-name`; null = `base`."""
    config_dir: Path | None = None
    """`--config-dir`, searched before the bundled configurations."""
    hardware: str | None = None
    """Profile used when the overrides name none; null = detect."""


@dataclass(frozen=True, kw_only=True)
class Composition:
    """The composed tree and what was decided without being asked."""

    tree: DictConfig
    """Interpolations are kept; `output_dir` may still be null."""
    user_keys: list[str]
    """Keys that the command line set."""
    detected: bool
    """Whether the hardware profile was detected."""
    devices: list[str]
    """Ids of the visible GPUs."""


def compose(request: Request) -> Composition:
    """Compose the tree. Raises ConfigError, one line per problem, for anything hydra would refuse."""
    roots = [Path(root) for root in (request.config_dir, conf_dir()) if root is not None]
    if not roots[0].is_dir():
        raise ConfigError(f"--config-dir {roots[0]}: no such folder")
    overrides = _parse(request.overrides)
    config_name = (request.config_name or BASE).removesuffix(".yaml")
    domain = _domain_of(overrides, roots)
    if config_name != BASE and not _config_file(roots, "", config_name):
        if not _config_file(roots, "domain", config_name):
            names = _options(roots, "") + _options(roots, "domain")
            raise ConfigError(
                f"--config-name={config_name}: no such configuration; " + suggestion(config_name, names)
            )
        if domain not in (None, config_name):
            raise ConfigError(
                f"--config-name={config_name} and +domain={domain} differ; name the domain once"
            )
        config_name, domain = BASE, config_name
    devices = visible_devices()
    given = next((o.value() for o in overrides if o.key_or_group == "hardware"), None)
    hardware = str(given) if given else request.hardware or ("gpu" if devices else "cpu")
    if not _config_file(roots, "hardware", hardware):
        raise ConfigError(
            f"hardware={hardware}: no such profile; " + suggestion(hardware, _options(roots, "hardware"))
        )
    _check_groups(overrides, roots)

    groups, values = _split(overrides, roots)
    files = [f"hardware={hardware}", *groups]
    layers = [f"+domain={domain}"] if domain else []
    layers += [
        f"+{g}={n}" for g, n in [("domain_hardware", f"{domain}_{hardware}")] if _config_file(roots, g, n)
    ]
    domain_keys = _domain_keys(roots, domain) if domain else []
    tree = _compose(roots, config_name, [*files, *layers])
    _keep_user_overlays(tree, roots, config_name, hardware, groups, layers)
    _apply(tree, values, domain_keys)
    with open_dict(tree):
        tree.domain_name = tree.get("domain_name") or domain
        tree.domain_keys = domain_keys
        _resolve_bundled_paths(tree)
    return Composition(
        tree=tree,
        user_keys=[o.key_or_group for o in overrides],
        detected=given is None and request.hardware is None,
        devices=devices,
    )


def _parse(texts: Sequence[str]) -> list[Override]:
    parser = OverridesParser.create()
    parsed = []
    for text in texts:
        try:
            parsed.append(parser.parse_override(text))
        except HydraException:
            raise ConfigError(
                f"{text!r}: not an override; write key=value, and quote values with spaces"
            ) from None
    for override in parsed:
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line}: sweeps are not supported; start one run per value")
    return parsed


def _domain_of(overrides: Sequence[Override], roots: Sequence[Path]) -> str | None:
    chosen: str | None = None
    for override in overrides:
        if override.key_or_group != "domain":
            continue
        name = str(override.value())
        if not _config_file(roots, "domain", name):
            raise ConfigError(
                f"+domain={name}: no such domain; " + suggestion(name, _options(roots, "domain"))
            )
        if not override.is_add():
            raise ConfigError(f"domain={name}: write +domain={name}, with the plus sign")
        if chosen is not None:
            raise ConfigError(f"+domain={name}: a domain was already chosen (+domain={chosen}); name one")
        chosen = name
    return chosen


def _split(overrides: Sequence[Override], roots: Sequence[Path]) -> tuple[list[str], list[Override]]:
    """Group choices other than domain and hardware, as text; and value overrides."""
    groups, values = [], []
    for override in overrides:
        key = override.key_or_group
        if key in ("domain", "hardware"):
            continue
        if _is_group(override, roots):
            groups.append(str(override.input_line))
        else:
            values.append(override)
    return groups, values


def _is_group(override: Override, roots: Sequence[Path]) -> bool:
    is_folder = any((root / override.key_or_group).is_dir() for root in roots)
    return is_folder and not isinstance(override.value(), dict) and not override.is_delete()


def _check_groups(overrides: Sequence[Override], roots: Sequence[Path]) -> None:
    for override in overrides:
        key = override.key_or_group
        if key in INTERNAL_GROUPS:
            raise ConfigError(
                f"{override.input_line}: chosen by +domain and hardware; set the keys themselves"
            )
        if key in ("domain", "hardware") or not _is_group(override, roots):
            continue
        name = str(override.value())
        if not _config_file(roots, key, name):
            raise ConfigError(f"{key}={name}: no such choice; " + suggestion(name, _options(roots, key)))


def _config_file(roots: Sequence[Path], group: str, name: str) -> Path | None:
    found = (root / group / f"{name}.yaml" for root in roots)
    return next((path for path in found if path.is_file()), None)


def _options(roots: Sequence[Path], group: str) -> list[str]:
    return sorted({path.stem for root in roots for path in (root / group).glob("*.yaml")})


def _compose(roots: Sequence[Path], config_name: str, overrides: list[str]) -> DictConfig:
    path = ",".join(f"file://{root.resolve()}" for root in roots[1:])
    extra = [f"hydra.searchpath=[{path}]"] if path else []
    try:
        with initialize_config_dir(str(roots[0].resolve()), version_base="1.3"):
            return hydra_compose(config_name, overrides=[*overrides, *extra])
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_first_line(error)) from None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return re.sub(r"\s+", " ", lines[0]) if lines else type(error).__name__


def _keep_user_overlays(
    tree: DictConfig,
    roots: Sequence[Path],
    config_name: str,
    hardware: str,
    groups: list[str],
    layers: list[str],
) -> None:
    """Let what a chosen group (`finetune=grpo`) changes win over the domain's files."""
    if not groups or not layers:
        return
    plain = _leaves(_compose(roots, config_name, [f"hardware={hardware}"]))
    chosen = _compose(roots, config_name, [f"hardware={hardware}", *groups])
    for key, value in _leaves(chosen).items():
        if key not in plain or plain[key] != value:
            OmegaConf.update(tree, key, value, force_add=True)


def _leaves(tree: DictConfig) -> dict[str, Any]:
    flat: dict[str, Any] = {}

    def walk(node: Any, prefix: str) -> None:
        if isinstance(node, dict) and node:
            for key, value in node.items():
                walk(value, f"{prefix}.{key}" if prefix else str(key))
        else:
            flat[prefix] = node

    walk(OmegaConf.to_container(tree, resolve=False), "")
    return flat


def _apply(tree: DictConfig, overrides: Sequence[Override], domain_keys: list[str]) -> None:
    """Value overrides, with the nearest valid key for one that does not exist."""
    for override in overrides:
        key = override.key_or_group
        remedy = remedy_for(key)
        if remedy is not None:
            raise ConfigError(f"{key}: {remedy}")
        if key == "hardware.kind":
            raise ConfigError(
                f"hardware.kind={override.value()}: choose the profile, hardware={override.value()}"
            )
        if override.is_delete():
            raise ConfigError(f"{override.input_line}: keys cannot be deleted; set {key}=null instead")
        if not _exists(tree, key) and not (override.is_add() or override.is_force_add()):
            raise ConfigError(f"{key}: unknown key; {_hint(tree, key)}")
        _set(tree, key, override.value())
    _check_open_sections(tree, domain_keys)


def _set(tree: DictConfig, key: str, value: Any) -> None:
    try:
        if isinstance(value, str):
            # The grammar keeps ${...} in strings; storing them makes them interpolations again.
            OmegaConf.update(tree, key, value, force_add=True)
        else:
            OmegaConf.update(tree, key, value, merge=True, force_add=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{key}={value}: {_first_line(error)}") from None


def _exists(tree: DictConfig, key: str) -> bool:
    parent, _, name = key.rpartition(".")
    try:
        node = OmegaConf.select(tree, parent) if parent else tree
    except OmegaConfBaseException:
        return False
    if isinstance(node, ListConfig):
        return name.isdigit() and int(name) < len(node)
    return isinstance(node, DictConfig) and name in OmegaConf.to_container(
        node, resolve=False, throw_on_missing=False
    )  # type: ignore[operator]


def _hint(tree: DictConfig, key: str) -> str:
    """The nearest key: first among the siblings, then anywhere in the tree."""
    parts = key.split(".")
    node: Any = tree
    walked: list[str] = []
    for part in parts:
        if not isinstance(node, DictConfig):
            return f"{'.'.join(walked)} holds a value and no keys"
        if part not in node:
            break
        walked.append(part)
        node = node._get_node(part)
    siblings = [str(name) for name in node] if isinstance(node, DictConfig) else []
    missing = parts[len(walked)]
    prefix = "".join(f"{part}." for part in walked)
    if nearest(missing, siblings) is None:
        last = parts[-1]
        elsewhere = [full for full in _leaves(tree) if full.rpartition(".")[2] == last]
        if elsewhere:
            return f"did you mean {elsewhere[0]}?"
        whole = nearest(key, _leaves(tree), cutoff=0.75)
        if whole is not None:
            return f"did you mean {whole}?"
    return suggestion(missing, siblings, prefix)


def _domain_keys(roots: Sequence[Path], domain: str) -> list[str]:
    """Keys that the domain's own file brings into open groups. Near misses of core keys are errors."""
    path = _config_file(roots, "domain", domain)
    assert path is not None
    content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(content, dict)
    brought = []
    for section in OPEN_SECTIONS:
        block = content if not section else content.get(section) or {}
        model = Config if not section else Config.model_fields[section].annotation
        assert isinstance(block, dict) and isinstance(model, type)
        known = [entry.alias or name for name, entry in model.model_fields.items()]
        prefix = f"{section}." if section else ""
        for key in map(str, block):
            if key in known or key == "defaults":
                continue
            match = nearest(key, known, cutoff=0.85)
            if match is not None:
                raise ConfigError(f"{path}: {prefix}{key}: unknown key; did you mean {prefix}{match}?")
            brought.append(f"{prefix}{key}")
    return brought


def _check_open_sections(tree: DictConfig, domain_keys: list[str]) -> None:
    """Keys added with `+` at the top level or under `actor` must be the domain's or the core's."""
    for section in OPEN_SECTIONS:
        node = tree if not section else tree[section]
        prefix = f"{section}." if section else ""
        for key in _added(node, section):
            if f"{prefix}{key}" not in domain_keys:
                raise ConfigError(f"{prefix}{key}: unknown key; {_hint_known(section, str(key))}")


def _added(node: DictConfig, section: str) -> Iterator[str]:
    known = _known(section)
    yield from (str(key) for key in node if key not in known)


def _hint_known(section: str, key: str) -> str:
    return suggestion(key, _known(section), f"{section}." if section else "")


def _known(section: str) -> set[str]:
    model = Config if not section else Config.model_fields[section].annotation
    assert isinstance(model, type)
    return {entry.alias or name for name, entry in model.model_fields.items()}


def _resolve_bundled_paths(tree: DictConfig) -> None:
    if OmegaConf.is_missing(tree, "model_path") or not isinstance(tree.model_path, str):
        return
    tree.model_path = resolve_bundled(tree.model_path)
