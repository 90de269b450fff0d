"""What the core is told about the domain: settings and checks before a run; named by `domain_hooks`."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from domains.logic.dataset import load_problems
from domains.logic.settings import KEY, LogicSettings
from domains.prompts import template_problems
from pipelinerl.base.errors import first_line
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
        problems = template_problems(cfg)
        if not str(cfg.dataset_loader).endswith(LOADERS):
            return problems
        given: Any = OmegaConf.to_container(cfg.dataset_loader_params, resolve=True)
        # One puzzle of each task and part: the actor makes them all, and some families are slow.
        try:
            given |= {key: min(given[key], 1) for key in ("count", "test_count") if key in given}
            load_problems([*cfg.train_dataset_names, *cfg.test_dataset_names], **given)
        except (TypeError, ValueError, OSError) as error:
            problems.append(first_line(error))
        return problems
