"""`pipelinerl.domains.X` is `domains.X`: the same module objects under the name configurations use.

Where no bundled domain has the name, X is the package that an installed distribution registered for it, or
else the user's package of that name on the Python path, so that files written for upstream find each other.
"""

import importlib
import importlib.util
import sys
from typing import Any

import domains
from pipelinerl.compat.import_names import AliasFinder, install
from pipelinerl.config.installed import installed_domains

CANONICAL = "domains."


def canonical(name: str) -> str:
    """`domains.NAME`, the module that a package registered for the first part of `name`, or `name` itself."""
    first, dot, rest = name.partition(".")
    if importlib.util.find_spec(CANONICAL + first) is not None:
        return CANONICAL + name
    if (entry := installed_domains().get(first)) is not None:
        return entry.module + dot + rest
    own = first not in sys.stdlib_module_names and importlib.util.find_spec(first) is not None
    return name if own else CANONICAL + name


install(AliasFinder(__name__ + ".", canonical))
__path__ = list(domains.__path__)

DISPATCHER = ("generate_multidomain_rollout", "register_domain_rollout")
"""Names of `dispatcher.py` that upstream's package has too."""


def __getattr__(name: str) -> Any:
    if name not in DISPATCHER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.dispatcher"), name)
