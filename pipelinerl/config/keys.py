"""Setting single keys of a composed tree, and saying what was meant when a key does not exist."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel

from pipelinerl.base.errors import ConfigError, first_line, nearest, suggestion
from pipelinerl.config.removed import remedy_for
from pipelinerl.config.tree import Config
from pipelinerl.domain import load_domain

OPEN_SECTIONS = ("", "actor")


def leaves(tree: DictConfig) -> dict[str, Any]:
    """Dotted keys and their values, interpolations unresolved."""
    flat: dict[str, Any] = {}

    def walk(node: Any, prefix: str) -> None:
        if isinstance(node, dict) and node:
            for key, value in node.items():
                walk(value, f"{prefix}.{key}" if prefix else str(key))
        else:
            flat[prefix] = node

    walk(OmegaConf.to_container(tree, resolve=False), "")
    return flat


def apply(tree: DictConfig, overrides: Sequence[Override], brought: list[str]) -> None:
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
            raise ConfigError(f"{key}: {_domain_remedy(tree, key) or f'unknown key; {_hint(tree, key)}'}")
        _set(tree, key, override.value())
    _check_open_sections(tree, brought)


def _domain_remedy(tree: DictConfig, key: str) -> str | None:
    """What the domain says about a key of its own that no longer exists."""
    return load_domain(tree.get("domain_hooks")).remedy(key)


def _set(tree: DictConfig, key: str, value: Any) -> None:
    node = OmegaConf.select(tree, key, throw_on_resolution_failure=False)
    if isinstance(node, DictConfig) and len(node) and isinstance(value, int | float):
        first = str(next(iter(node)))
        raise ConfigError(f"{key}={value!r}: holds keys, such as {key}.{first}; set one of those")
    try:
        if isinstance(value, str):
            # The grammar keeps ${...} in strings; storing them makes them interpolations again.
            OmegaConf.update(tree, key, value, force_add=True)
        else:
            OmegaConf.update(tree, key, value, merge=True, force_add=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{key}={value}: {first_line(error)}") from None


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
        elsewhere = [full for full in leaves(tree) if full.rpartition(".")[2] == last]
        if elsewhere:
            return f"did you mean {elsewhere[0]}?"
        whole = nearest(key, leaves(tree), cutoff=0.75)
        if whole is not None and not _is_free(walked):
            return f"did you mean {whole}?"
    hint = suggestion(missing, siblings, prefix)
    if _is_free(walked):
        hint += f"; a new key is written +{key}=VALUE"
    return hint


def _is_free(path: list[str]) -> bool:
    """Whether the mapping at this path takes keys of the user's own."""
    model: Any = Config
    for part in path:
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return True
        entry = model.model_fields.get(part)
        if entry is None:
            return True
        model = entry.annotation
    return not (isinstance(model, type) and issubclass(model, BaseModel))


def domain_keys(path: Path) -> list[str]:
    """Keys that the domain's file brings into open groups. Near misses of core keys are errors."""
    loaded = OmegaConf.load(path)
    assert isinstance(loaded, DictConfig)
    return brought_keys(loaded, path)


def brought_keys(tree: DictConfig, path: Path) -> list[str]:
    """The same for what was read from `path`."""
    content = OmegaConf.to_container(tree, resolve=False)
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


def _check_open_sections(tree: DictConfig, brought: list[str]) -> None:
    """Keys added with `+` at the top level or under `actor` must be the domain's or the core's."""
    for section in OPEN_SECTIONS:
        node = tree if not section else tree[section]
        prefix = f"{section}." if section else ""
        for key in _added(node, section):
            if f"{prefix}{key}" not in brought:
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
