"""Prompts of both roles from template files: `full` for instruction-tuned models, `tiny` for bundled ones.

A set is a folder with `policy_user.md` and `critic_user.md`, and `*_system.md` where it has system prompts;
`policy_system_<task>.md` replaces the policy's for a task whose answers are written, not found.
"""

from functools import cache
from pathlib import Path
from string import Template

from pipelinerl.llm import Prompt


def policy_prompt(prompt_set: str, task: str, question: str) -> Prompt:
    """What the policy reads."""
    return _prompt(prompt_set, "policy", task, question=question)


def critic_prompt(prompt_set: str, question: str, answer_1: str, answer_2: str) -> Prompt:
    """What the critic reads: the question and two final answers, never any reasoning."""
    return _prompt(prompt_set, "critic", None, question=question, answer_1=answer_1, answer_2=answer_2)


def ordered(expert: str, policy: str, expert_position: int) -> tuple[str, str]:
    """The answers at 1 and 2."""
    return (expert, policy) if expert_position == 1 else (policy, expert)


def _prompt(prompt_set: str, role: str, task: str | None, **values: str) -> Prompt:
    system = _template(prompt_set, f"{role}_system_{task}") or _template(prompt_set, f"{role}_system")
    user = _template(prompt_set, f"{role}_user")
    if user is None:
        raise ValueError(f"raro.prompt_set={prompt_set}: has no {role}_user.md")
    messages = [] if system is None else [{"role": "system", "content": system.template}]
    return Prompt(messages=[*messages, {"role": "user", "content": user.substitute(values)}])


@cache
def _template(prompt_set: str, name: str) -> Template | None:
    path = Path(__file__).parent / prompt_set / f"{name}.md"
    return Template(path.read_text(encoding="utf-8").strip()) if path.is_file() else None
