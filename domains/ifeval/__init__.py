"""Following instructions that a program can verify: IFEval's, under the names of upstream's domain.

Names load on first use, so that the checks can be imported without an engine.
"""

from domains.lazy import lazy

__all__, __getattr__ = lazy(
    __name__,
    IFEvalDomain="domain",
    IFEvalEnvironment="verifier_api",
    generate_ifeval_rollout="rollouts",
    load_datasets="dataset",
    load_problems="dataset",
    verify_answer="verifier_api",
    verify_answer_rpc="verifier_api",
)
