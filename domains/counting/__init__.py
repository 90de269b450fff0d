"""Counting letters in words and words in texts, under the names of upstream's domain.

Names load on first use, so that loaders can be imported without an engine.
"""

from domains.lazy import lazy

__all__, __getattr__ = lazy(
    __name__, CountingDomain="domain", generate_counting_rollout="counting", load_problems="data"
)
