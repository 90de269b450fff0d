"""Prompt sets: from the context of a decision to one user message. `prompt_set` names the set.

A set is a pure function, so that equal states give equal prompts; templates are the `.md` files beside it.
"""

from domains.privacy_hopqa.agent.interfaces import Prompts
from domains.privacy_hopqa.agent.prompts import compact, full

PROMPT_SETS: dict[str, Prompts] = {"full": full.render, "compact": compact.render}
"""By the name that `prompt_set` gives."""
