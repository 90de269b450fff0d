"""Private multi-hop question answering: an agent that searches private documents and the public web.

The attributes below are loaded on first use, so that the pure parts of the domain (scorer, leakage, world)
can be imported without the agent.
"""

from importlib import import_module
from typing import Any

_EXPORTS = {
    "generate_privacy_hopqa_rollout": "domains.privacy_hopqa.rollouts",
    "load_problems": "domains.privacy_hopqa.dataset",
    "PrivacyHopQASettings": "domains.privacy_hopqa.settings",
    "PrivacyHopQADomain": "domains.privacy_hopqa.domain",
}

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
