"""Names of a domain's package that load on first use, so that its pure parts need no engine or verifier.

The `__init__.py` of a domain says which of its modules has which name.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(package: str, **modules: str) -> tuple[list[str], Callable[[str], Any]]:
    """`__all__` and `__getattr__` of a package: each name, and the module below it that defines the name."""

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return list(modules), load
