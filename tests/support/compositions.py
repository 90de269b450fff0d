"""Compositions that are made once: hydra's part of one takes a tenth of a second, a file of them ten ms."""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
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


def schema_once(schema: Callable[[], DictConfig]) -> Callable[[], DictConfig]:
    """`compose._schema`."""
    known = pickle.dumps(schema())
    return lambda: _copy(known)


def with_libyaml(get_yaml_loader: Callable[[], type]) -> Callable[[], type]:
    """omegaconf's loader, an eighth of its time where libyaml is installed.

    What is no YAML is read once more by the loader itself, for the words of its error.
    """
    if not yaml.__with_libyaml__:
        return get_yaml_loader
    slow: Any = get_yaml_loader()
    parser: Any = vars(yaml.cyaml)["CParser"]

    class Quick(parser, slow):  # type: ignore[misc]
        def __init__(self, text: str) -> None:
            parser.__init__(self, text)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

    class Loader:
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def get_single_data(self) -> Any:
            file = not isinstance(self._stream, str)
            begin = self._stream.tell() if file else 0
            text = self._stream.read() if file else self._stream
            try:
                return Quick(text).get_single_data()
            except (yaml.YAMLError, ValueError):
                if file:
                    self._stream.seek(begin)
                return slow(self._stream).get_single_data()

        def dispose(self) -> None:
            """Called by yaml."""

    return lambda: Loader


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
