"""What several checks need: values as a configuration writes them, dotted paths without an import."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from pipelinerl.base.errors import suggestion


def as_written(value: object) -> str:
    """A value as a configuration writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def dotted(key: str, path: str | None, what: str) -> Iterator[str]:
    """Whether a dotted path leads to a name in an importable module, without importing that module."""
    if not path:
        yield f"{key}: missing; give the dotted path of {what}, or choose a domain with +domain=NAME"
        return
    module_name, _, name = path.rpartition(".")
    if not module_name:
        yield f"{key}={path}: not a dotted path; write package.module.name"
        return
    try:
        spec = importlib.util.find_spec(module_name)
    except ImportError as error:  # of a package above it
        spec = None
        if error.name and not f"{module_name}.".startswith(f"{error.name}."):
            yield f"{key}={path}: {module_name} needs {error.name}, which is not installed"
            return
    if spec is None:
        yield f"{key}={path}: no module {module_name}; check the spelling or install it"
        return
    source = Path(spec.origin).read_text() if spec.origin and spec.origin.endswith(".py") else None
    if source is not None and not re.search(rf"\b{re.escape(name)}\b", source):
        yield f"{key}={path}: {module_name} has no {name}; {suggestion(name, _offered(source))}"


def _offered(source: str) -> list[str]:
    """Functions that a module defines or passes on from another one."""
    names = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.ImportFrom):
            names += [alias.asname or alias.name for alias in node.names]
    return names
