"""The rollout policy under the name that configurations use; the code is in `language/rollout.py`."""

from domains.reputation_hacking.language.rollout import generate_reputation_rollout

__all__ = ["generate_reputation_rollout"]
