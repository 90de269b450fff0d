"""`pipelinerl.domains.X` is `domains.X`: the same module objects under the name configurations use.

Where no bundled domain has the name, X is the package that an installed distribution registered for it.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

import domains
from pipelinerl.config.installed import installed_domains

ALIAS = __name__ + "."
CANONICAL = "domains."


class _AliasLoader(importlib.abc.Loader):
    """Yields the canonical module instead of executing anything."""

    def __init__(self, canonical: ModuleType, alias: str) -> None:
        self.canonical, self.alias = canonical, alias
        self.spec = canonical.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self.canonical

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just overwritten the identity of the module; give it back.
        assert self.spec is not None
        module.__spec__ = self.spec
        module.__loader__ = self.spec.loader
        module.__package__ = self.spec.parent
        # What the package has imported of itself is known under both names at once. Imported later by its
        # alias, a module would replace a function of its name in the package, such as math.load_datasets.
        below = self.spec.name + "."
        for name in [name for name in sys.modules if name.startswith(below)]:
            sys.modules.setdefault(self.alias + name.removeprefix(self.spec.name), sys.modules[name])


def _canonical(name: str) -> str:
    """`domains.NAME`, or the module that a package registered for the first part of `name`."""
    first, dot, rest = name.partition(".")
    entry = installed_domains().get(first)
    if entry is None or importlib.util.find_spec(CANONICAL + first) is not None:
        return CANONICAL + name
    return entry.module + dot + rest


class _AliasFinder(importlib.abc.MetaPathFinder):
    """Finds `pipelinerl.domains.X` wherever `domains.X` is found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(ALIAS):
            return None
        canonical_name = _canonical(fullname.removeprefix(ALIAS))
        if importlib.util.find_spec(canonical_name) is None:
            return None
        canonical = importlib.import_module(canonical_name)
        return importlib.machinery.ModuleSpec(
            fullname, _AliasLoader(canonical, fullname), is_package=hasattr(canonical, "__path__")
        )


# First in line: the path finder would otherwise load a second copy through `__path__`.
sys.meta_path.insert(0, _AliasFinder())
__path__ = list(domains.__path__)
