"""Mathematics with checked answers: one question, one completion, math-verify as the judge.

Names below load on first use, so that loaders and rewards can be imported without the verifier.
"""

from domains.lazy import lazy

_EXPORTS = {
    "MathDomain": "domain",
    "MathEnvironment": "environment",
    "MathMetrics": "rollouts",
    "RewardTable": "rewards",
    "generate_math_rollout": "rollouts",
    "get_reward": "rewards",
    "length_penalty": "rewards",
    "load_datasets": "data",
    "load_problems": "data",
    "verify_answer": "answers",
    "verify_answer_rpc": "client",
}

__all__ = list(_EXPORTS)
__getattr__ = lazy(__name__, _EXPORTS)
