"""Names of a domain's package that load on first use, so that its pure parts need no engine or verifier.

The `__init__.py` of a domain says which of its modules has which name.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, exports: Mapping[str, str]) -> Callable[[str], Any]:
    """`__getattr__` of a package whose `exports` map a name to the module below it that defines it."""

    def load(name: str) -> Any:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{exports[name]}"), name)

    return load
