"""What the core is told about the domain: settings, checks, demonstrations; named by `domain_hooks`."""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from domains.imitation import loss_problems
from domains.loading import loading_problems
from domains.prompts import first_question, template_problems
from domains.reasoning_gym import demonstrations as answers
from domains.reasoning_gym.data import DOMAIN, chosen, load_problems
from domains.reasoning_gym.families import entry
from domains.reasoning_gym.settings import KEY, ReasoningGymSettings, settings_of
from pipelinerl.domain import BaseDomain, ReportFocus
from pipelinerl.extras.bootstrap.demonstrations import Demonstration

LOADER = "reasoning_gym.load_problems"


class ReasoningGymDomain(BaseDomain):
    """Checks before the start, and questions with answers to imitate."""

    settings = ReasoningGymSettings
    settings_key = KEY
    policy_keys = ("actor.system_prompt", "actor.task_template")
    report_focus = ReportFocus(headline=("success", "reward", "no_answer", "no_error"))

    def first_messages(self, cfg: DictConfig, problem: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The question, as the rollout asks it."""
        return first_question(cfg, problem, DOMAIN, lambda row: str(row["question"]))

    def validate(self, cfg: DictConfig) -> list[str]:
        """The package is installed, each family makes a question with its options, the prompt holds it."""
        found = loading_problems(cfg, LOADER, load_problems, few=("count", "test_count"))
        imitates = settings_of(cfg).reward == "gold"
        loss = loss_problems(f"{KEY}.reward=gold", imitates, cfg.finetune.rl.policy_loss)
        return [*template_problems(cfg), *loss, *(found or _without_answers(cfg))]

    def vocabulary(self) -> tuple[str, ...]:
        """What every question has, so that a small model reads what is asked and little else."""
        return answers.pieces()

    def demonstrations(self, cfg: DictConfig, seed: int, phase: str) -> Iterator[Demonstration]:
        """Answers to questions of training: right ones, or in the phase `careless` mostly wrong ones."""
        return answers.demonstrations(cfg, KEY, seed, phase, answers.MISTAKES)


def _without_answers(cfg: DictConfig) -> Iterator[str]:
    """Families that only score (`rush_hour` has many solutions): there is nothing to imitate."""
    if settings_of(cfg).reward != "gold" or not str(cfg.dataset_loader).endswith(LOADER):
        return
    params: Any = OmegaConf.to_container(cfg.dataset_loader_params, resolve=True)
    for task, options in chosen(params["tasks"]).items():
        if entry(task, options, 0, 0)["answer"] is None:
            yield (
                f"dataset_loader_params.tasks.{task}: its questions have no answer of their own that "
                f"{KEY}.reward=gold could imitate; leave the family out, or use {KEY}.reward=verifier"
            )
