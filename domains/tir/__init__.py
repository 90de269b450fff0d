"""Mathematics with a Python tool: code blocks run in the sandbox, the final answer is judged as in `math`.

Names load on first use, so that importing this package needs neither an engine, a judge nor a sandbox.
"""

from domains.lazy import lazy

__all__, __getattr__ = lazy(
    __name__,
    MCPPythonEnvironment="environment",
    TirDomain="domain",
    TirMetrics="rollouts",
    generate_tir_rollout="rollouts",
    load_datasets="datasets",
    load_problems="datasets",
)
