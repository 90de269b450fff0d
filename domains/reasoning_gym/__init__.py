"""Generated reasoning tasks with verifiers: the families of the package `reasoning-gym`, one question each.

Names load on first use, so that importing this package needs neither the library nor an engine.
"""

from domains.lazy import lazy

__all__, __getattr__ = lazy(
    __name__,
    ReasoningGymDomain="domain",
    ReasoningGymMetrics="rollouts",
    extract_answer="answers",
    generate_reasoning_gym_rollout="rollouts",
    load_problems="data",
)
