"""What several checks need: values as a configuration writes them, dotted paths without an import."""

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelinerl.base.errors import suggestion

_Function = ast.FunctionDef | ast.AsyncFunctionDef


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
    owner = _class_at(module_name)
    if owner is not None:
        offered = [node.name for node in owner.body if isinstance(node, _Function)]
        if name not in offered and not owner.bases:  # which may have it
            yield f"{key}={path}: {module_name} has no {name}; {suggestion(name, offered)}"
        return
    try:
        spec = importlib.util.find_spec(module_name)
    except ImportError as error:  # of a package above it
        spec = None
        if error.name and not f"{module_name}.".startswith(f"{error.name}."):
            yield f"{key}={path}: {module_name} needs {error.name}, which is not installed"
            return
    except Exception as error:  # whatever a package above it does while it is imported
        yield f"{key}={path}: importing {module_name} failed: {type(error).__name__}: {error}"
        return
    if spec is None:
        yield f"{key}={path}: no module {module_name}; check the spelling or install it"
        return
    source = (
        Path(spec.origin).read_text(encoding="utf-8") if spec.origin and spec.origin.endswith(".py") else None
    )
    if source is not None and not re.search(rf"\b{re.escape(name)}\b", source):
        offered = _offered(source)
        instead = suggestion(name, offered) if offered else "it defines nothing that could be named here"
        yield f"{key}={path}: {module_name} has no {name}; {instead}"


def _class_at(path: str) -> ast.ClassDef | None:
    """A class of a module, whose static and class methods a dotted path may name; None for anything else."""
    above, _, name = path.rpartition(".")
    try:
        spec = importlib.util.find_spec(above) if above else None
        origin = spec.origin if spec else None
        source = Path(origin).read_text(encoding="utf-8") if origin and origin.endswith(".py") else ""
        body = ast.parse(source).body
    except Exception:  # the line about the module says it
        return None
    return next((node for node in body if isinstance(node, ast.ClassDef) and node.name == name), None)


def refused_call(
    key: str, path: str, signature: inspect.Signature, positional: Sequence[str], named: Sequence[str]
) -> str | None:
    """Why what stands at `path` cannot be called with these arguments, or None."""
    try:
        signature.bind(*positional, **dict.fromkeys(named))
    except TypeError as error:
        called = ", ".join([*positional, *(f"{name}=..." for name in named)])
        return f"{key}={path}: is called with ({called}) and takes {signature}: {error}"
    return None


POLICY = ("cfg", "llm", "problem", "session")
"""What a rollout policy is given, in this order."""
LOADER = ("dataset_names",)
"""What a loader is given."""


def refused_kind(key: str, path: str, positional: Sequence[str], awaits: bool, yields: bool) -> str | None:
    """Why what a call of a loader or a policy returns is no result yet: `async def`, `yield`; or None."""
    if tuple(positional) == LOADER and (awaits or yields):
        kind = "async def" if awaits else "yields"
        return f"{key}={path}: {kind}, and is called once; make it a plain def that returns a list of dicts"
    if tuple(positional) == POLICY and yields:
        return f"{key}={path}: yields, and one RolloutResult is expected; return it instead"
    return None


def signature_problem(key: str, path: str, positional: Sequence[str], named: Sequence[str]) -> str | None:
    """The same from the function's source, without an import; None where that does not show it."""
    function = _definition(path)
    if function is None:
        return None
    awaits, yields = isinstance(function, ast.AsyncFunctionDef), _yields(function)
    kind = refused_kind(key, path, positional, awaits, yields)
    return kind or refused_call(key, path, _declared(function.args), positional, named)


def missing_import(path: str) -> str | None:
    """A package that each call of this function imports and that is not there; None where none is seen."""
    function = _definition(path)
    return next((name for name in _imported(function) if not _is_there(name)), None) if function else None


def _imported(function: _Function) -> Iterator[str]:
    """Packages that each call imports; not those under a condition or in a `try`, which may do without."""
    for node in function.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _is_there(package: str) -> bool:
    try:
        return package in sys.modules or importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # of a module that was made by hand
        return True


def _yields(function: _Function) -> bool:
    """Whether its own body yields, not that of a function inside."""
    left: list[ast.AST] = [*function.body]
    while left:
        node = left.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.GeneratorExp):
            left += ast.iter_child_nodes(node)
    return False


def _definition(path: str, hops: int = 5) -> _Function | None:
    """A plain function of a module, also through modules that pass it on; None for anything else."""
    module_name, _, name = path.rpartition(".")
    if _class_at(module_name) is not None:  # the search for it as a module would import the one above
        return None
    try:
        spec = importlib.util.find_spec(module_name) if module_name else None
        origin = spec.origin if spec else None
        source = Path(origin).read_text(encoding="utf-8") if origin and origin.endswith(".py") else ""
        body = ast.parse(source).body
    except Exception:  # also of a package above it, which is imported: that says it better
        return None
    functions = [n for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == name]
    bound = [node for node in ast.walk(ast.Module(body, [])) if getattr(node, "id", None) == name]
    if len(functions) == 1 and not functions[0].decorator_list and not any(_stored(node) for node in bound):
        return functions[0]
    passed_on = [node for node in body if isinstance(node, ast.ImportFrom)]
    for node in passed_on if hops and not functions else []:
        for alias in node.names:
            if (alias.asname or alias.name) == name:
                package = bool(spec and spec.submodule_search_locations)
                names = module_name.split(".")
                above = names[: len(names) + package - node.level] if node.level else []
                return _definition(".".join([*above, *filter(None, [node.module]), alias.name]), hops - 1)
    return None


def _stored(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store)


class _Written:
    """A default value, shown as it is written."""

    def __init__(self, node: ast.expr) -> None:
        self._text = ast.unparse(node)

    def __repr__(self) -> str:
        return self._text


def _declared(args: ast.arguments) -> inspect.Signature:
    kind, empty = inspect.Parameter, inspect.Parameter.empty
    places = [*args.posonlyargs, *args.args]
    ways = [kind.POSITIONAL_ONLY] * len(args.posonlyargs) + [kind.POSITIONAL_OR_KEYWORD] * len(args.args)
    without = len(places) - len(args.defaults)
    found = [
        kind(a.arg, way, default=_Written(args.defaults[at - without]) if at >= without else empty)
        for at, (a, way) in enumerate(zip(places, ways, strict=True))
    ]
    if args.vararg:
        found.append(kind(args.vararg.arg, kind.VAR_POSITIONAL))
    found += [
        kind(a.arg, kind.KEYWORD_ONLY, default=_Written(value) if value else empty)
        for a, value in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    if args.kwarg:
        found.append(kind(args.kwarg.arg, kind.VAR_KEYWORD))
    return inspect.Signature(found)


def _offered(source: str) -> list[str]:
    """What a module defines, passes on from another one, or loads on first use (`domains/lazy.py`)."""
    names = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "(__all__, __getattr__)":
            return [word.arg for word in getattr(node.value, "keywords", []) if word.arg]
        elif isinstance(node, ast.ImportFrom):
            names += [alias.asname or alias.name for alias in node.names]
    return names
