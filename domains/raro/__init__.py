"""RARO: learning to reason from expert answers alone, with a critic that is the same model.

Method: Relativistic Adversarial Reasoning Optimization (arXiv 2511.21667). Names below load on first use.
"""

from domains.lazy import lazy

__all__, __getattr__ = lazy(
    __name__,
    generate_raro_rollout="rollout",
    load_problems="data",
    RaroSettings="config",
    RaroDomain="domain",
)
