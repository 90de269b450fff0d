"""What the core is told about the domain: settings and checks before a run; named by `domain_hooks`."""

from omegaconf import DictConfig

from domains.loading import loading_problems
from domains.logic.dataset import load_problems
from domains.logic.settings import KEY, LogicSettings
from domains.prompts import template_problems
from pipelinerl.domain import BaseDomain, ReportFocus

LOADERS = ("logic.load_problems", "logic.dataset.load_problems")


class LogicDomain(BaseDomain):
    """Checks before the start; everything else is the rollout's."""

    settings = LogicSettings
    settings_key = KEY
    policy_keys = ("rewards", "actor.discount_factor", "actor.system_prompt", "actor.task_template")
    report_focus = ReportFocus(headline=("success", "score", "reward", "no_answer", "no_error"))

    def validate(self, cfg: DictConfig) -> list[str]:
        """The families are there or the rows can be read, the prompt holds the puzzle."""
        found = loading_problems(cfg, LOADERS, load_problems, few=("count", "test_count"))
        return [*template_problems(cfg), *found]
