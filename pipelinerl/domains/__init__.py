"""`pipelinerl.domains.X` is `domains.X`: the same module objects under the name configurations use.

Where no bundled domain has the name, X is the package that an installed distribution registered for it, or
else the user's package of that name on the Python path, so that files written for upstream find each other.
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
    """Yields the canonical module, which is imported under its own name."""

    def __init__(self, canonical: str, alias: str) -> None:
        self.canonical, self.alias = canonical, alias
        self.spec: importlib.machinery.ModuleSpec | None = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.canonical)
        self.spec = module.__spec__
        return module

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
    """`domains.NAME`, the module that a package registered for the first part of `name`, or `name` itself."""
    first, dot, rest = name.partition(".")
    if importlib.util.find_spec(CANONICAL + first) is not None:
        return CANONICAL + name
    if (entry := installed_domains().get(first)) is not None:
        return entry.module + dot + rest
    own = first not in sys.stdlib_module_names and importlib.util.find_spec(first) is not None
    return name if own else CANONICAL + name


class _AliasFinder(importlib.abc.MetaPathFinder):
    """Finds `pipelinerl.domains.X` wherever `domains.X` is found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(ALIAS):
            return None
        canonical = _canonical(fullname.removeprefix(ALIAS))
        found = importlib.util.find_spec(canonical)
        if found is None:
            return None
        # Not imported here: checks before a start look for modules, and read their files only.
        package = found.submodule_search_locations is not None
        loader = _AliasLoader(canonical, fullname)
        return importlib.machinery.ModuleSpec(fullname, loader, origin=found.origin, is_package=package)


# First in line: the path finder would otherwise load a second copy through `__path__`.
sys.meta_path.insert(0, _AliasFinder())
__path__ = list(domains.__path__)
