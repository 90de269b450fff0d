"""Compositions that are made once: hydra's part of one takes a tenth of a second, a file of them ten ms."""

import pickle
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hydra._internal import config_loader_impl
from omegaconf import DictConfig, ListConfig, OmegaConf, SCMode, ValueNode, _utils, base, basecontainer
from omegaconf.errors import OmegaConfBaseException

from pipelinerl.config import compose
from pipelinerl.config.installed import conf_dir
from tests.support.quick_trees import quick_copy, quick_create

Made = TypeVar("Made")
Set = Callable[[Any, str, Any], None]


def quick(put: Set) -> dict[str, Any]:
    """Puts all of this in place by `put`, which is `setattr` or pytest's; returns what omegaconf had."""
    put(_utils, "get_yaml_loader", loader := with_libyaml(_utils.get_yaml_loader))
    put(basecontainer, "get_yaml_loader", loader)
    put(compose, "_schema", schema_once(compose._schema))
    put(compose, "_compose", remembered(compose._compose))
    put(compose, "file_order", remembered(compose.file_order))
    put(OmegaConf, "load", staticmethod(loaded_once(OmegaConf.load)))
    put(config_loader_impl, "create_defaults_list", listed_once(config_loader_impl.create_defaults_list))
    content = basecontainer.BaseContainer._to_content
    put(basecontainer.BaseContainer, "_to_content", staticmethod(quick_content(content)))
    slow: dict[str, Any] = {"create": OmegaConf.create}
    put(OmegaConf, "create", staticmethod(quick_create(OmegaConf.create)))
    for kind in (DictConfig, ListConfig):
        slow[kind.__name__] = kind.__deepcopy__
        put(kind, "__deepcopy__", quick_copy(kind.__deepcopy__))
    put(base, "parse", cache(base.parse))  # of `${...}`: what it returns is only read
    return slow


def remembered(from_files: Callable[..., Made]) -> Callable[..., Made]:
    """`compose._compose` or `compose.file_order`, once for each choice of files and of what a user's hold."""
    known: dict[tuple[object, ...], Callable[[], Made]] = {}

    def made(roots: Sequence[Path], config_name: str, overrides: list[str]) -> Made:
        own = [root for root in roots if root != conf_dir() and not _offers_nothing(root, config_name)]
        key = (config_name, *overrides, *(_texts(root) for root in own))
        if key not in known:
            known[key] = _copies(from_files(roots, config_name, overrides))
        return known[key]()

    return made


def schema_once(schema: Callable[[], DictConfig]) -> Callable[[], DictConfig]:
    """`compose._schema`."""
    return _copies(schema())


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


def loaded_once(load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`OmegaConf.load`, once for each bundled file, which hydra gives open and others by its path."""
    known: dict[Path, Callable[[], Any]] = {}

    def made(file: Any) -> Any:
        path = Path(file if isinstance(file, str | Path) else file.name)
        if not path.is_relative_to(conf_dir()):
            return load(file)
        if path not in known:
            known[path] = _copies(load(file))
        return known[path]()

    return made


def listed_once(create: Callable[..., Made]) -> Callable[..., Made]:
    """hydra's list of defaults, which a composition and the order of its files ask for, of bundled files."""
    known: dict[tuple[object, ...], Made] = {}

    def made(repo: Any, config_name: str, overrides_list: Sequence[Any], **how: bool) -> Made:
        folders = {source.path for source in repo.get_sources() if source.scheme() == "file"}
        if folders != {str(conf_dir())}:
            return create(repo, config_name, overrides_list, **how)
        key = (config_name, *(one.input_line for one in overrides_list), *how.items())
        if key not in known:
            known[key] = create(repo, config_name, overrides_list, **how)
        return known[key]

    return made


def quick_content(slow: Callable[..., Any]) -> Callable[..., Any]:
    """omegaconf's making of plain containers, which asks each value four times whether it refers to another.

    Whatever is no plain value in a plain container is left to it.
    """

    def made(conf: Any, resolve: bool, throw_on_missing: bool, *how: Any, **named: Any) -> Any:
        content = conf.__dict__["_content"]

        def value(key: Any, node: Any) -> Any:
            if type(node) in (DictConfig, ListConfig):  # isinstance would ask the abstract classes
                return made(node, resolve, throw_on_missing, *how, **named)
            found = node.__dict__["_val"]
            if resolve and type(found) is str and "${" in found:
                node = conf._get_child(key)._dereference_node()
                found = node._value() if isinstance(node, ValueNode) else value(key, node)
            return found

        kinds = how or tuple(named.values())
        if throw_on_missing or any(kind not in (False, SCMode.DICT) for kind in kinds):
            return slow(conf, resolve, throw_on_missing, *how, **named)
        try:
            if isinstance(content, dict):
                return {key: value(key, node) for key, node in content.items()}
            if isinstance(content, list):
                return [value(key, node) for key, node in enumerate(content)]
        except OmegaConfBaseException:
            pass  # said by omegaconf with the key
        return slow(conf, resolve, throw_on_missing, *how, **named)

    return made


def _offers_nothing(root: Path, config_name: str) -> bool:
    """Whether a folder of a user has neither the primary file, which is the bundled one, nor any choice."""
    return (
        config_name == compose.BASE
        and not (root / f"{config_name}.yaml").exists()
        and not any(path.is_dir() for path in root.iterdir())
    )


def _texts(root: Path) -> tuple[object, ...]:
    """What composing can read in a user's folder."""
    return tuple((str(path.relative_to(root)), path.read_bytes()) for path in sorted(root.rglob("*.yaml")))


def _copies(made: Made) -> Callable[[], Made]:
    """Copies of it, in the way that is fastest."""
    if isinstance(made, DictConfig):
        return lambda: deepcopy(made)
    pickled = pickle.dumps(made)
    return lambda: pickle.loads(pickled)  # type: ignore[no-any-return]
