"""What the core is told about the domain: checks before a run starts; named by `domain_hooks`."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from domains.math import demonstrations as answers
from domains.math.data import DOMAIN, load_problems
from domains.math.notes import judge_notes
from domains.prompts import check_bare, first_question, template_problems
from pipelinerl.domain import BaseDomain, NotesOf, ReportFocus
from pipelinerl.extras.bootstrap.demonstrations import Demonstration

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

    def demonstrations(self, cfg: DictConfig, seed: int, phase: str) -> Iterator[Demonstration]:
        """Boxed answers to generated arithmetic, right ones or in the phase `careless` also wrong ones.

        No question is one of the evaluation's.
        """
        check_bare(cfg, DOMAIN)
        params = dict(cfg.dataset_loader_params)
        asked = {problem["task"] for problem in load_problems(list(cfg.test_dataset_names), **params)}
        return answers.demonstrations(seed, phase, params["highest"], params["by_length"], asked)
