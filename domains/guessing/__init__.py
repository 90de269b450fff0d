"""Two number games: the package's names are upstream's, `stepwise` is the one of `+domain=guessing`.

A configuration written for upstream names `pipelinerl.domains.guessing.load_problems`, and must get the
numbers and the reward that it was written for; the bundled configuration names `domains.guessing.stepwise`.
"""

from domains.guessing.guessing import generate_guessing_rollout, load_problems

__all__ = ["generate_guessing_rollout", "load_problems"]
