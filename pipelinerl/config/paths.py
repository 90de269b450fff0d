"""Where configurations, bundled models and runs lie."""

from __future__ import annotations

import importlib.util
from datetime import datetime
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
BUNDLED_ROOTS = ("domains",)


def conf_dir() -> Path:
    """The bundled configurations: inside an installed package, or beside it in a checkout."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parent / "conf"


def resolve_bundled(path: str) -> str:
    """A folder as an absolute path; `domains/...` is looked up in the installed package otherwise."""
    if Path(path).is_dir():
        return str(Path(path).absolute())
    first = Path(path).parts[0] if path else ""
    if first not in BUNDLED_ROOTS:
        return path
    spec = importlib.util.find_spec(first)
    if spec is None or not spec.submodule_search_locations:
        return path
    return str(Path(next(iter(spec.submodule_search_locations))).parent / path)


def default_output_dir(domain: str | None, now: datetime) -> str:
    """`results/<domain>/<date-time>`."""
    return str(Path("results") / (domain or "run") / now.strftime("%Y-%m-%d_%H-%M-%S"))
