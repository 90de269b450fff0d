"""Where configurations, bundled models and runs lie."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def conf_dir() -> Path:
    """The bundled configurations: inside an installed package, or beside it in a checkout."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parent / "conf"


def resolve_bundled(path: str) -> str:
    """A folder as an absolute path; `domains/...` is looked up in the installed package otherwise."""
    if Path(path).is_dir():
        return str(Path(path).absolute())
    spec = importlib.util.find_spec("domains") if Path(path).parts[:1] == ("domains",) else None
    if spec is None or not spec.submodule_search_locations:
        return path
    return str(Path(next(iter(spec.submodule_search_locations))).parent / path)
