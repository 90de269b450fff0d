"""Environments of the package `verifiers` (its v1): a taskset that a user has installed is trained as it is.

Names load on first use, so that importing this package needs neither the library nor an engine.
"""

from domains.lazy import lazy

__all__, __getattr__ = lazy(
    __name__,
    VerifiersDomain="domain",
    VerifiersMetrics="rollouts",
    generate_verifiers_rollout="rollouts",
    load_problems="data",
)
