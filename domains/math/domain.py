"""What the core is told about the domain: checks before a run starts; named by `domain_hooks`."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from domains.math.data import DOMAIN, load_problems
from domains.math.notes import judge_notes
from domains.prompts import first_question, template_problems
from pipelinerl.domain import BaseDomain, NotesOf, ReportFocus

LOADER = "math.load_problems"


class MathDomain(BaseDomain):
    """Checks before the start; everything else is the rollout's."""

    policy_keys = ("rewards", "actor.discount_factor", "actor.system_prompt", "actor.task_template")

    report_focus = ReportFocus(headline=("success", "reward", "no_answer", "no_error"))

    def rollout_notes(self, output_dir: Path) -> NotesOf:
        """What the judge read in each answer."""
        return judge_notes

    def first_messages(self, cfg: DictConfig, problem: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The question, as the rollout asks it."""
        return first_question(cfg, problem, DOMAIN, lambda row: str(row["task"]))

    def validate(self, cfg: DictConfig) -> list[str]:
        """The verifier is installed, the data can be read, the prompt holds the question."""
        problems = []
        if find_spec("math_verify") is None:
            problems.append("math-verify is not installed, it judges answers; pip install 'pipelinerl[math]'")
        problems += template_problems(cfg)
        if str(cfg.dataset_loader).endswith(LOADER):
            names = [*cfg.train_dataset_names, *cfg.test_dataset_names]
            try:
                load_problems(names, **dict(cfg.dataset_loader_params))
            except (TypeError, ValueError, OSError) as error:
                problems.append(str(error))
        return problems
