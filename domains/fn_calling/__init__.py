"""Calling functions: BFCL's problems and comparison, under the names of upstream's domain.

Names load on first use, so that the comparison can be imported without an engine.
"""

from domains.lazy import lazy

__all__, __getattr__ = lazy(
    __name__,
    AgenticToolsEnvironment="verifier_api",
    BFCLEnvironment="verifier_api",
    FnCallingDomain="domain",
    evaluate_fn_calling_answer="verifier_api",
    generate_fn_calling_rollout="rollouts",
    load_datasets="dataset",
    load_problems="dataset",
    verify_fn_calling_answer="verifier_api",
    verify_fn_calling_answer_rpc="verifier_api",
)
