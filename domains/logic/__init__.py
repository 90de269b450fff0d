"""Logic puzzles under the names of upstream's domain: generated families, or rows of the published data set.

Names load on first use, so that importing this package needs neither the families nor an engine.
"""

from domains.lazy import lazy

__all__, __getattr__ = lazy(
    __name__,
    LogicDomain="domain",
    LogicEnvironment="verifier_api",
    generate_logic_rollout="rollouts",
    load_datasets="dataset",
    load_problems="dataset",
    verify_answer_rpc="verifier_api",
)
