"""One module object under two names: domains by the names of configurations, rooms by their former ones.

Called when `pipelinerl` and `pipelinerl.domains` are imported. Standard library only.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

EXTRAS = ("bootstrap", "recorder", "sandbox")
"""Rooms of `pipelinerl.extras` that authors of domains also know directly below `pipelinerl`."""


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


class AliasFinder(importlib.abc.MetaPathFinder):
    """Finds the module that `canonical` names for what follows `prefix`, where it names one."""

    def __init__(self, prefix: str, canonical: Callable[[str], str | None]) -> None:
        self._prefix, self._canonical = prefix, canonical

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(self._prefix):
            return None
        canonical = self._canonical(fullname.removeprefix(self._prefix))
        found = importlib.util.find_spec(canonical) if canonical else None
        if canonical is None or found is None:
            return None
        if fullname.endswith(".__main__") and found.origin:  # of `python -m`, which reads its code
            return importlib.util.spec_from_file_location(fullname, found.origin)
        # Not imported here: checks before a start look for modules, and read their files only.
        package = found.submodule_search_locations is not None
        loader = _AliasLoader(canonical, fullname)
        return importlib.machinery.ModuleSpec(fullname, loader, origin=found.origin, is_package=package)


def install(finder: AliasFinder) -> None:
    """First in line: the path finder would otherwise load a second copy through `__path__`."""
    sys.meta_path.insert(0, finder)


def extras(name: str) -> str | None:
    """`pipelinerl.extras.NAME` of one of EXTRAS or a module of it."""
    return f"pipelinerl.extras.{name}" if name.partition(".")[0] in EXTRAS else None
