"""What the core is told about the domain: checks before a run, and a counter for a small model to imitate."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig

from domains.counting.counting import FORM, task_of
from domains.counting.data import DOMAIN, load_problems
from domains.counting.questions import draw, question
from domains.loading import loading_problems
from domains.prompts import first_question, template_problems
from domains.split import is_held_out
from pipelinerl.domain import BaseDomain, ReportFocus
from pipelinerl.extras.bootstrap.demonstrations import Demonstration

LOADER = "counting.load_problems"
PER_SEED = 200
CARELESS = "careless"
"""The phase of `bootstrap.phases` that leaves something to learn."""
MISCOUNTS = 0.5
"""Share of demonstrations that are wrong by one or two."""


PIECES = (
    "How many times does the ",
    "letter '",
    "word '",
    "' stand in the word '",
    "' stand in the text '",
    f"'? {FORM}",
    "<answer>",
    "</answer>",
)


def miscounted(rng: random.Random, count: int) -> int:
    """The count, or in half of the cases a number near it: what a careless counter says."""
    if rng.random() >= MISCOUNTS:
        return count
    return rng.choice([near for near in range(count - 2, count + 3) if near >= 0 and near != count])


class CountingDomain(BaseDomain):
    """Checks before the start, and demonstrations for `python -m pipelinerl.bootstrap +domain=counting`."""

    policy_keys = ("actor.system_prompt", "actor.task_template")
    report_focus = ReportFocus(headline=("success", "reward", "no_answer", "no_error"))

    def first_messages(self, cfg: DictConfig, problem: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The question, as the rollout asks it."""
        return first_question(cfg, problem, DOMAIN, task_of)

    def validate(self, cfg: DictConfig) -> list[str]:
        """The rows can be read or made, the prompt holds the question."""
        return [
            *template_problems(cfg),
            *loading_problems(cfg, LOADER, load_problems, ("count", "test_count")),
        ]

    def vocabulary(self) -> tuple[str, ...]:
        """What every question and answer has, so that a small model reads the letters and little else."""
        return PIECES

    def demonstrations(self, cfg: DictConfig, seed: int, phase: str) -> Iterator[Demonstration]:
        """Counting of what training may ask: without mistakes, or in the phase `careless` with them."""
        params = cfg.dataset_loader_params
        rng, careless = random.Random(f"counting demonstrations {seed}"), phase == CARELESS
        for index in range(PER_SEED):
            kind = params.kinds[index % len(params.kinds)]
            row = draw(rng, kind, params.vocabulary)
            said = miscounted(rng, row["count"]) if careless else row["count"]
            if not is_held_out(question(row), params.held_out):
                yield Demonstration(kind, task_of(row), f"<answer>{said}</answer>", exact=not careless)
