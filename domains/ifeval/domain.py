"""What the core is told about the domain: checks before a run, and responses for a small model to imitate."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig

from domains.ifeval.dataset import DOMAIN, load_problems
from domains.ifeval.writing import WRITINGS, Prompt, response_of, write
from domains.loading import loading_problems
from domains.prompts import first_question, template_problems
from domains.split import is_held_out
from pipelinerl.domain import BaseDomain, ReportFocus
from pipelinerl.extras.bootstrap.demonstrations import Demonstration

LOADERS = ("ifeval.load_problems", "ifeval.dataset.load_problems")
PER_SEED = 200
HEEDED = 0.5
"""Probability with which a demonstration follows each of its instructions."""


def half_heard(rng: random.Random, one: Prompt) -> str:
    """A response that follows each instruction only sometimes."""
    heard = [pair for pair in zip(one.names, one.kwargs, strict=True) if rng.random() < HEEDED]
    return response_of(one.plain, [name for name, _ in heard], [given for _, given in heard])


class IFEvalDomain(BaseDomain):
    """Checks before the start, and demonstrations for `python -m pipelinerl.bootstrap +domain=ifeval`."""

    policy_keys = ("rewards", "actor.discount_factor", "actor.system_prompt", "actor.task_template")
    report_focus = ReportFocus(
        headline=("success", "success_loose", "partial_score", "partial_score_loose", "reward")
    )

    def first_messages(self, cfg: DictConfig, problem: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The question, as the rollout asks it."""
        return first_question(cfg, problem, DOMAIN, lambda row: str(row["task"]))

    def validate(self, cfg: DictConfig) -> list[str]:
        """The prompts can be read or made, the template holds them."""
        return [
            *template_problems(cfg),
            *loading_problems(cfg, LOADERS, load_problems, few=("count", "test_count")),
        ]

    def demonstrations(self, cfg: DictConfig, seed: int, phase: str) -> Iterator[Demonstration]:
        """Responses to prompts of training, each instruction followed or not, whatever the phase."""
        params, rng = cfg.dataset_loader_params, random.Random(f"ifeval demonstrations {seed}")
        allowed, most = list(params.instructions or WRITINGS), params.max_constraints or 3
        for _ in range(PER_SEED):
            one = write(rng, allowed, most)
            said = half_heard(rng, one)
            if not is_held_out(one.prompt, params.held_out):
                yield Demonstration("follow", one.prompt, said, exact=False)
