"""What the core is told about the domain: settings, checks, demonstrations; named by `domain_hooks`."""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig

from domains.loading import loading_problems
from domains.logic import demonstrations as answers
from domains.logic.dataset import DOMAIN, FAMILIES, load_problems
from domains.logic.settings import KEY, LogicSettings
from domains.prompts import first_question, template_problems
from domains.reasoning_gym.demonstrations import demonstrations
from pipelinerl.domain import BaseDomain, ReportFocus
from pipelinerl.extras.bootstrap.demonstrations import Demonstration

LOADERS = ("logic.load_problems", "logic.dataset.load_problems")


class LogicDomain(BaseDomain):
    """Checks before the start, and puzzles with answers to imitate."""

    settings = LogicSettings
    settings_key = KEY
    policy_keys = ("rewards", "actor.discount_factor", "actor.system_prompt", "actor.task_template")
    report_focus = ReportFocus(headline=("success", "score", "reward", "no_answer", "no_error"))

    def first_messages(self, cfg: DictConfig, problem: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The question, as the rollout asks it."""
        return first_question(cfg, problem, DOMAIN, lambda row: str(row["task"]))

    def validate(self, cfg: DictConfig) -> list[str]:
        """The families are there or the rows can be read, the prompt holds the puzzle."""
        found = loading_problems(cfg, LOADERS, load_problems, few=("count", "test_count"))
        return [*template_problems(cfg), *found]

    def vocabulary(self) -> tuple[str, ...]:
        """What every question has, so that a small model reads the puzzle and little else."""
        return answers.PIECES

    def demonstrations(self, cfg: DictConfig, seed: int, phase: str) -> Iterator[Demonstration]:
        """Answers to puzzles of training: right ones, or in the phase `careless` mostly wrong ones."""
        return demonstrations(cfg, KEY, seed, phase, answers.MISTAKES, FAMILIES.__getitem__)
