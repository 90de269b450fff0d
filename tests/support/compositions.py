"""Compositions that are made once: hydra's part of one takes a tenth of a second, a file of them ten ms."""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from omegaconf import DictConfig, OmegaConf

from pipelinerl.config import compose
from pipelinerl.config.installed import conf_dir

Made = TypeVar("Made")


def remembered(from_files: Callable[..., Made]) -> Callable[..., Made]:
    """`compose._compose` or `compose.file_order`, once for each choice of bundled files."""
    known: dict[str, bytes] = {}

    def made(roots: Sequence[Path], config_name: str, overrides: list[str]) -> Made:
        if not all(root == conf_dir() or _offers_nothing(root, config_name) for root in roots):
            return from_files(roots, config_name, overrides)
        key = " ".join([config_name, *overrides])
        if key not in known:
            known[key] = pickle.dumps(from_files(roots, config_name, overrides))
        copy: Made = pickle.loads(known[key])
        return copy

    return made


def loaded_once(load: Callable[[Path], DictConfig]) -> Callable[[Path], DictConfig]:
    """`compose._load`, once for each bundled file."""
    known: dict[Path, bytes] = {}

    def made(path: Path) -> DictConfig:
        if not path.is_relative_to(conf_dir()):
            return load(path)
        if path not in known:
            known[path] = pickle.dumps(load(path))
        return _copy(known[path])

    return made


def resolved_once(resolved: Callable[[DictConfig], DictConfig]) -> Callable[[DictConfig], DictConfig]:
    """`plan.resolved`, which a launch asks three times in a row for trees of the same values."""
    last = b"", b""

    def made(tree: DictConfig) -> DictConfig:
        nonlocal last
        values = pickle.dumps(OmegaConf.to_container(tree, resolve=True))
        if values != last[0]:
            last = values, pickle.dumps(resolved(tree))
        return _copy(last[1])

    return made


def copied(tree: DictConfig) -> DictConfig:
    """What `deepcopy` makes of a tree, in a third of the time."""
    return _copy(pickle.dumps(tree))


def _offers_nothing(root: Path, config_name: str) -> bool:
    """Whether a folder of a user has neither the primary file, which is the bundled one, nor any choice."""
    return (
        config_name == compose.BASE
        and not (root / f"{config_name}.yaml").exists()
        and not any(path.is_dir() for path in root.iterdir())
    )


def _copy(pickled: bytes) -> DictConfig:
    copy = pickle.loads(pickled)
    assert isinstance(copy, DictConfig)
    return copy
