"""hydra's part of a composition: files and their lists of defaults become one tree. Called by `compose`.

Only hydra's public interface is used. It wants one folder for the primary file and searches others behind it;
a plug-in puts the user's folders before.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from pipelinerl.base.errors import ConfigError, first_line
from pipelinerl.config.legacy import not_yaml

_GLOBAL = re.compile(r"^#\s*@package\s+_global_", re.MULTILINE)
"""How a file of a group says that its keys stand at the top level."""
MOST_VALUES = 100_000
"""Of one file with its aliases in full; configurations have some hundred."""


def check_aliases(roots: Sequence[Path]) -> None:
    """Raises ConfigError for a file whose aliases would be written out as too many values.

    YAML shares what `*name` refers to; omegaconf copies it, so that ten lines can stand for 10^10 values.
    """
    for path in chain.from_iterable(root.glob(form) for root in roots for form in ("*.yaml", "*/*.yaml")):
        content = path.read_bytes() if path.is_file() else b""
        if b"&" not in content or b"*" not in content:
            continue
        try:
            count = _written_out(yaml.compose(content, yaml.SafeLoader), {})
        except (YAMLError, RecursionError):  # said with its line where the file is read
            continue
        if count > MOST_VALUES:
            raise ConfigError(
                f"{path}: its aliases (*name) stand for more than {MOST_VALUES:,} values; write fewer of them"
            )


def _written_out(node: yaml.Node | None, known: dict[int, float]) -> float:
    """Values below a node with every alias in full; infinite where one is within itself."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        known[id(node)] = math.inf
        parts = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 + sum(_written_out(part, known) for part in parts)
    return known[id(node)]


def files(roots: Sequence[Path], config_name: str, overrides: list[str]) -> DictConfig:
    """One tree from files and their lists of defaults."""
    with _hydra(roots):
        return hydra_compose(config_name, overrides=overrides)


def for_hydras_launcher(roots: Sequence[Path], config_name: str, overrides: list[str]) -> DictConfig:
    """The section `hydra` of the same files, which no tree of `files` has."""
    with _hydra(roots):
        return hydra_compose(config_name, overrides=overrides, return_hydra_config=True).hydra


def in_subfolder(config_name: str, primary: Path, root: Path) -> str | None:
    """Why a primary file of a folder below `root` would compose into something else, or None."""
    folder, _, name = config_name.rpartition("/")
    if not folder or _GLOBAL.search(primary.read_text(encoding="utf-8", errors="replace")):
        return None
    return (
        f"--config-name={config_name}: hydra looks for the defaults of a file in {folder}/ there and puts "
        f"its keys below {folder.replace('/', '.')}; copy {primary} to {root / name}.yaml, beside the "
        f"folders of its defaults, and give --config-name={name}"
    )


def file_order(roots: Sequence[Path], config_name: str, overrides: list[str]) -> list[ResultDefault]:
    """The files of which hydra would make that tree, each with its place in it, the strongest last."""
    with _hydra(roots) as loader:
        found = loader.compute_defaults_list(config_name, overrides, RunMode.RUN)
        return list(found.defaults)


class _UserFolders(SearchPathPlugin):  # type: ignore[misc]
    """The user's folders before the bundled one; `hydra.searchpath` adds some only behind it.

    hydra makes an instance of every plug-in that is registered whenever it begins.
    """

    folders: tuple[Path, ...] = ()
    """Of the call that is going on, the first one searched first."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by hydra."""
        for folder in reversed(self.folders):
            search_path.prepend(provider="user", path=f"file://{folder.resolve()}")


@contextmanager
def in_one_line() -> Iterator[None]:
    """Raises ConfigError for what omegaconf refuses while files are read and laid over each other."""
    try:
        yield
    except OmegaConfBaseException as error:
        key = f"{error.full_key}: " if error.full_key else ""
        raise ConfigError(f"a configuration file cannot be read: {key}{first_line(error)}") from None
    except RecursionError:
        raise ConfigError(
            "a configuration file cannot be read: it is among its own defaults, or sections are too deep "
            "inside each other; take its name out of the defaults"
        ) from None
    except ConfigError:
        raise
    except ValueError as error:  # Python's, of an integer of thousands of digits
        raise ConfigError(f"a value cannot be read: {first_line(error)}") from None


@contextmanager
def _hydra(roots: Sequence[Path]) -> Iterator[ConfigLoader]:
    """hydra over these folders, for one call. Raises ConfigError for what it refuses."""
    Plugins.instance().register(_UserFolders)
    _UserFolders.folders = tuple(roots[:-1])
    try:
        with initialize_config_dir(str(roots[-1].resolve()), job_name="pipelinerl", version_base="1.3"):
            yield GlobalHydra.instance().config_loader()
    except MissingConfigException as error:
        raise ConfigError(_missing(error, roots)) from None
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(first_line(error)) from None
    except (ValueError, TypeError, AttributeError) as error:  # hydra's about files that are no configuration
        raise ConfigError(f"a configuration file cannot be read: {first_line(error)}") from None
    except YAMLError as error:
        raise ConfigError(not_yaml(error)) from None
    finally:
        _UserFolders.folders = ()


def _missing(error: MissingConfigException, roots: Sequence[Path]) -> str:
    """What a list of defaults names and no folder has; in a subfolder, how it would be found above it."""
    *folders, name = str(error.missing_cfg_file or "").split("/")
    for at in range(1, len(folders) + 1):
        above = [*folders[at:], name]
        if any(root.joinpath(*above).with_suffix(".yaml").is_file() for root in roots):
            group = "".join(f"{folder}/" for folder in above[:-1]).rstrip("/")
            written = f"/{group}: {name}" if group else f"/{name}"
            remedy = f"names in a file of a subfolder begin there; write `{written}` in its defaults"
            break
    else:
        remedy = "copy that file too, or take its name out of the defaults"
    return f"{first_line(error)}; {remedy}"
