"""Prompt sets: from the context of a decision to one user message. `prompt_set` names the set."""

from collections.abc import Callable
from typing import Protocol

from domains.privacy_hopqa.agent.interfaces import Context, Rendered
from domains.privacy_hopqa.agent.prompts.compact import CompactPrompts
from domains.privacy_hopqa.agent.prompts.full import FullPrompts


class PromptSet(Protocol):
    """Renders every stage's context; a pure function of it."""

    def render(self, context: Context) -> Rendered: ...


PROMPT_SETS: dict[str, Callable[[], PromptSet]] = {"full": FullPrompts, "compact": CompactPrompts}


def load_prompts(name: str) -> PromptSet:
    """The prompt set of this name; ValueError lists those there are."""
    if name not in PROMPT_SETS:
        raise ValueError(f"privacy_hopqa.prompt_set={name}: available are {', '.join(PROMPT_SETS)}")
    return PROMPT_SETS[name]()
