"""What the core is told about the domain: settings and checks before a run; named by `domain_hooks`."""

from omegaconf import DictConfig

from domains.loading import loading_problems
from domains.prompts import template_problems
from domains.reasoning_gym.data import load_problems
from domains.reasoning_gym.settings import KEY, ReasoningGymSettings
from pipelinerl.domain import BaseDomain, ReportFocus

LOADER = "reasoning_gym.load_problems"


class ReasoningGymDomain(BaseDomain):
    """Checks before the start; everything else is the rollout's."""

    settings = ReasoningGymSettings
    settings_key = KEY
    policy_keys = ("actor.system_prompt", "actor.task_template")
    report_focus = ReportFocus(headline=("success", "reward", "no_answer", "no_error"))

    def validate(self, cfg: DictConfig) -> list[str]:
        """The package is installed, each family makes a question with its options, the prompt holds it."""
        found = loading_problems(cfg, LOADER, load_problems, few=("count", "test_count"))
        return [*template_problems(cfg), *found]
