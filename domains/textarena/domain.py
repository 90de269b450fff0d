"""What the core is told about the domain: settings and checks before a run; named by `domain_hooks`."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from domains.prompts import question_messages, template_problems
from domains.textarena.data import DOMAIN, load_problems, named
from domains.textarena.games import Game
from domains.textarena.settings import KEY, TextArenaSettings
from pipelinerl.base.errors import first_line
from pipelinerl.domain import BaseDomain, ReportFocus

LOADER = "textarena.load_problems"


class TextArenaDomain(BaseDomain):
    """Checks before the start; everything else is the rollout's."""

    settings = TextArenaSettings
    settings_key = KEY
    policy_keys = ("actor.system_prompt", "actor.task_template")
    report_focus = ReportFocus(headline=("success", "reward", "no_answer", "ended"))

    def first_messages(self, cfg: DictConfig, problem: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """What the first seat sees of a new game."""
        if problem.get("domain") != DOMAIN:
            return None
        _, seen = Game(problem["game"], problem["options"], problem["seed"]).observation()
        return question_messages(cfg, seen)

    def validate(self, cfg: DictConfig) -> list[str]:
        """The package is installed, each game starts with its options, the prompt holds what a seat sees."""
        problems = template_problems(cfg)
        if not str(cfg.dataset_loader).endswith(LOADER):
            return problems
        given: Any = OmegaConf.to_container(cfg.dataset_loader_params, resolve=True)
        try:
            load_problems([*cfg.train_dataset_names, *cfg.test_dataset_names], **given)
            for game, options in named(given["games"]).items():
                Game(game, options, seed=0)
        except (TypeError, ValueError) as error:
            problems.append(first_line(error))
        return problems
