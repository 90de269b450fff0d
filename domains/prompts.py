"""The prompt of domains with one question and one completion; called by their rollouts."""

import string
from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import DictConfig


def filled(template: str, task: str) -> str:
    """A template with the task in it.

    One whose only field is `{task}` is Python's, as in upstream, so that `{{` and `}}` stand for single
    braces. Any other one has braces of its own, such as `\\boxed{}`, and only `{task}` is replaced.
    """
    try:
        fields = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        if fields == {"task"}:
            return template.format(task=task)
    except (ValueError, LookupError):  # a single brace, or a format that no text has
        pass
    return template.replace("{task}", task)


def question_messages(cfg: DictConfig, task: str, domain: str = "") -> list[dict[str, Any]]:
    """`actor.system_prompt` if there is one, then `actor.task_template` with the task in it.

    Without one, `actor.domain_system_prompts` may have one for `domain`, as files of upstream do. Raises
    ValueError for a template that leaves the task out: a file of upstream has no hooks that refuse it.
    """
    for problem in template_problems(cfg):
        raise ValueError(problem)
    system = str(cfg.actor.get("system_prompt") or "")
    if not system and domain:
        system = str((cfg.actor.get("domain_system_prompts") or {}).get(domain) or "")
    template = str(cfg.actor.get("task_template") or "{task}")
    user = {"role": "user", "content": filled(template, task)}
    return [{"role": "system", "content": system}, user] if system else [user]


def first_question(
    cfg: DictConfig, problem: Mapping[str, Any], domain: str, task_of: Callable[[Any], str]
) -> list[dict[str, Any]] | None:
    """The messages of a problem of this domain, and None for one of another."""
    return question_messages(cfg, task_of(problem), domain) if problem.get("domain") == domain else None


def check_bare(cfg: DictConfig, domain: str) -> None:
    """Raises ValueError where the prompt is more than the question; demonstrations have nothing else."""
    if question_messages(cfg, "") != [{"role": "user", "content": ""}]:
        raise ValueError(
            f"actor.system_prompt, actor.task_template: demonstrations of {domain} are of bare questions; "
            "set both to ''"
        )


def template_problems(cfg: DictConfig) -> list[str]:
    """What is wrong with `actor.task_template`, one line each."""
    template = cfg.actor.get("task_template")
    if template and filled(str(template), "1") == filled(str(template), "2"):
        return [f"actor.task_template={template!r}: put {{task}} where the question goes"]
    return []
