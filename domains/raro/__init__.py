"""RARO: learning to reason from expert answers alone, with a critic that is the same model.

Method: Relativistic Adversarial Reasoning Optimization (arXiv 2511.21667). Names below load on first use.
"""

from importlib import import_module
from typing import Any

_EXPORTS = {
    "generate_raro_rollout": "domains.raro.rollout",
    "load_problems": "domains.raro.data",
    "RaroSettings": "domains.raro.config",
    "RaroDomain": "domains.raro.domain",
}

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
