"""What the core is told about the domain: settings and checks before a run; named by `domain_hooks`."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from domains.prompts import template_problems
from domains.reasoning_gym.data import load_problems
from domains.reasoning_gym.settings import KEY, ReasoningGymSettings
from pipelinerl.base.errors import first_line
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
        problems = template_problems(cfg)
        if not str(cfg.dataset_loader).endswith(LOADER):
            return problems
        given: Any = OmegaConf.to_container(cfg.dataset_loader_params, resolve=True)
        # One question of each family and part: the actor makes them all, and some families are slow.
        try:
            given |= {key: min(given[key], 1) for key in ("count", "test_count") if key in given}
            load_problems([*cfg.train_dataset_names, *cfg.test_dataset_names], **given)
        except (TypeError, ValueError) as error:
            problems.append(first_line(error))
        return problems
