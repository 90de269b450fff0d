"""Following instructions that a program can verify: IFEval's, under the names of upstream's domain.

Names load on first use, so that the checks can be imported without an engine.
"""

from domains.lazy import lazy

_EXPORTS = {
    "IFEvalDomain": "domain",
    "IFEvalEnvironment": "verifier_api",
    "generate_ifeval_rollout": "rollouts",
    "load_datasets": "dataset",
    "load_problems": "dataset",
    "verify_answer": "verifier_api",
    "verify_answer_rpc": "verifier_api",
}

__all__ = list(_EXPORTS)
__getattr__ = lazy(__name__, _EXPORTS)
