"""Mathematics with checked answers: one question, one completion, math-verify as the judge.

Names below load on first use, so that loaders and rewards can be imported without the verifier.
"""

from importlib import import_module
from typing import Any

_EXPORTS = {
    "MathDomain": "domains.math.domain",
    "MathEnvironment": "domains.math.environment",
    "MathMetrics": "domains.math.rollouts",
    "RewardTable": "domains.math.rewards",
    "generate_math_rollout": "domains.math.rollouts",
    "get_reward": "domains.math.rewards",
    "length_penalty": "domains.math.rewards",
    "load_datasets": "domains.math.data",
    "load_problems": "domains.math.data",
    "verify_answer": "domains.math.answers",
    "verify_answer_rpc": "domains.math.client",
}

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
