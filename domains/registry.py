"""Which code belongs to a domain's name, imported when the name is first used.

The dispatcher asks for rollout policies, the loader of several domains for loaders.
By convention a bundled or installed domain NAME has `generate_NAME_rollout` and `load_problems` (or
`load_datasets`) in its package; configurations and `register_domain_rollout` name anything else.
"""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from pipelinerl.base.errors import ConfigError, suggestion
from pipelinerl.config.installed import GROUP, installed_domains
from pipelinerl.domain import resolve_dotted

LOADER_NAMES = ("load_problems", "load_datasets")


def find_rollout(domain: str, key: str) -> Callable[..., Any]:
    """The rollout policy that a domain has by convention. Raises ConfigError that says to set `key`."""
    entry = installed_domains().get(domain)
    if entry is not None and entry.attr:
        return _callable(entry.load(), f"entry point {domain} of {GROUP}")
    return _attribute(domain, (f"generate_{domain}_rollout",), key)


def find_loader(domain: str, key: str) -> Callable[..., Any]:
    """The loader that a domain has by convention. Raises ConfigError that says to set `key`."""
    return _attribute(domain, LOADER_NAMES, key)


def resolve_callable(target: str | Callable[..., Any], key: str) -> Callable[..., Any]:
    """The function at a dotted path, or the function itself. Raises ConfigError for anything else."""
    return _callable(resolve_dotted(target, key) if isinstance(target, str) else target, f"{key}={target}")


def _attribute(domain: str, names: Sequence[str], key: str) -> Callable[..., Any]:
    if domain.isidentifier() and importlib.util.find_spec(f"domains.{domain}") is not None:
        module_name = f"domains.{domain}"
    elif domain in installed_domains():
        module_name = installed_domains()[domain].module
    else:
        raise ConfigError(
            f"domain {domain!r}: not bundled and not installed; set {key}, or {suggestion(domain, known())}"
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"domain {domain!r}: importing {module_name} failed: {error}") from error
    for name in names:
        if hasattr(module, name):
            return _callable(getattr(module, name), f"{module_name}.{name}")
    raise ConfigError(f"domain {domain!r}: {module_name} has no {' or '.join(names)}; set {key}")


def known() -> list[str]:
    """Names of the bundled and installed domains."""
    import pkgutil

    import domains

    bundled = [info.name for info in pkgutil.iter_modules(domains.__path__) if info.ispkg]
    return sorted({*bundled, *installed_domains()} - {"multidomain"})


def _callable(found: Any, where: str) -> Callable[..., Any]:
    if not callable(found):
        raise ConfigError(f"{where}: a {type(found).__name__} is no function")
    return found  # type: ignore[no-any-return]
