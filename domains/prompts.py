"""The prompt of domains with one question and one completion; called by their rollouts."""

from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import DictConfig


def question_messages(cfg: DictConfig, task: str) -> list[dict[str, Any]]:
    """`actor.system_prompt` if there is one, then `actor.task_template` with the task in it."""
    system = str(cfg.actor.get("system_prompt") or "")
    template = str(cfg.actor.get("task_template") or "{task}")
    user = {"role": "user", "content": template.replace("{task}", task)}
    return [{"role": "system", "content": system}, user] if system else [user]


def first_question(
    cfg: DictConfig, problem: Mapping[str, Any], domain: str, task_of: Callable[[Any], str]
) -> list[dict[str, Any]] | None:
    """The messages of a problem of this domain, and None for one of another."""
    return question_messages(cfg, task_of(problem)) if problem.get("domain") == domain else None


def check_bare(cfg: DictConfig, domain: str) -> None:
    """Raises ValueError where the prompt is more than the question; demonstrations have nothing else."""
    if question_messages(cfg, "") != [{"role": "user", "content": ""}]:
        raise ValueError(
            f"actor.system_prompt, actor.task_template: demonstrations of {domain} are of bare questions; "
            "set both to ''"
        )


def template_problems(cfg: DictConfig) -> list[str]:
    """What is wrong with `actor.task_template`, one line each."""
    if cfg.actor.task_template and "{task}" not in cfg.actor.task_template:
        return [f"actor.task_template={cfg.actor.task_template!r}: put {{task}} where the question goes"]
    return []
