"""Mathematics with checked answers: one question, one completion, one verdict.

Names below load on first use, so that loaders and rewards can be imported without the verifier. All but
`load_datasets`: its module has the same name, and whichever is imported last would own it.
"""

from domains.lazy import lazy
from domains.math.load_datasets import load_datasets

__all__, __getattr__ = lazy(
    __name__,
    MathDomain="domain",
    MathEnvironment="environment",
    MathMetrics="rollouts",
    RewardTable="rewards",
    generate_math_rollout="rollouts",
    get_reward="rewards",
    length_penalty="rewards",
    load_problems="data",
    verify_answer="answers",
    verify_answer_rpc="client",
)
__all__ += ["load_datasets"]
