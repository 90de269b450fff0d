"""Private multi-hop question answering: an agent that searches private documents and the public web.

The attributes below are loaded on first use, so that the pure parts of the domain (scorer, leakage, world)
can be imported without the agent.
"""

from domains.lazy import lazy

__all__, __getattr__ = lazy(
    __name__,
    generate_privacy_hopqa_rollout="rollouts",
    load_problems="dataset",
    PrivacyHopQASettings="settings",
    PrivacyHopQADomain="domain",
)
