"""Text games of one and two players: those of the package `textarena` that need no download.

Names load on first use, so that importing this package needs neither the library nor an engine.
"""

from domains.lazy import lazy

__all__, __getattr__ = lazy(
    __name__,
    GameMetrics="rollouts",
    TextArenaDomain="domain",
    generate_textarena_rollout="rollouts",
    load_problems="data",
)
