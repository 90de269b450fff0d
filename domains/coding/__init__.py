"""Programming problems: a completion's code runs in the sandbox, and its outputs are compared outside.

Names load on first use, so that importing this package needs neither an engine nor a sandbox.
"""

from domains.lazy import lazy

__all__, __getattr__ = lazy(
    __name__,
    CodingDomain="domain",
    CodingMetrics="rollouts",
    evaluate="verifier_api",
    generate_coding_rollout="rollouts",
    load_datasets="dataset",
    load_problems="dataset",
)
