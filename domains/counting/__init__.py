"""Counting letters in words and words in texts, under the names of upstream's domain.

Names load on first use, so that loaders can be imported without an engine.
"""

from domains.lazy import lazy

_EXPORTS = {
    "CountingDomain": "domain",
    "generate_counting_rollout": "counting",
    "load_problems": "data",
}

__all__ = list(_EXPORTS)
__getattr__ = lazy(__name__, _EXPORTS)
