"""What the core is told about the domain: settings, checks, demonstrations; named by `domain_hooks`."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig

from domains.coding.dataset import DOMAIN, load_problems
from domains.coding.rollouts import task_of
from domains.coding.settings import KEY, CodingSettings, settings_of
from domains.coding.tiny import ARITHMETIC, DIGITS, FAMILIES, Task, training
from domains.loading import loading_problems
from domains.prompts import first_question, question_messages, template_problems
from pipelinerl.base.errors import first_line
from pipelinerl.domain import BaseDomain, ReportFocus
from pipelinerl.extras.bootstrap.demonstrations import Demonstration
from pipelinerl.extras.sandbox.host import SandboxUnavailable, mechanism

LOADER = "load_problems"
PER_SEED = 200
RIGHT = 0.5
"""Share of demonstrations that are solutions; the others have a mistake, if it changes anything."""
OPERATORS = "+-*%"


class CodingDomain(BaseDomain):
    """Checks before the start, and imperfect solutions to imitate."""

    settings = CodingSettings
    settings_key = KEY
    policy_keys = ("rewards", "actor.discount_factor", "actor.system_prompt", "actor.task_template")
    report_focus = ReportFocus(headline=("success", "reward", "no_answer", "no_error"))

    def first_messages(self, cfg: DictConfig, problem: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The question, as the rollout asks it."""
        return first_question(cfg, problem, DOMAIN, task_of)

    def validate(self, cfg: DictConfig) -> list[str]:
        """The machine has a sandbox, the data can be read, the prompt holds the task."""
        problems = template_problems(cfg)
        packages: tuple[str, ...] = ()
        try:
            packages = settings_of(cfg).packages
            mechanism(packages)
        except (SandboxUnavailable, ValueError) as error:
            problems.append(first_line(error))

        def load(names: list[str], **given: Any) -> list[dict[str, Any]]:
            # Without running the references: the actor does that once.
            return load_problems(names, **given | {"check_references": False, "packages": packages})

        return [*problems, *loading_problems(cfg, LOADER, load)]

    def demonstrations(self, cfg: DictConfig, seed: int, phase: str) -> Iterator[Demonstration]:
        """Answers to training questions in the right form, some of them wrong; none is the only right one."""
        rng = random.Random(f"coding demonstrations {seed}")
        known = training()
        for _ in range(PER_SEED):
            task = rng.choice(known[rng.choice(FAMILIES)])
            messages = question_messages(cfg, task.question)
            if len(messages) != 1:
                raise ValueError("actor.system_prompt: demonstrations of coding have none")
            answer = f"```python\n{task.program(shown(task, known[task.family], rng))}\n```"
            yield Demonstration(task.family, messages[0]["content"], answer, exact=False)


def shown(task: Task, known: list[Task], rng: random.Random) -> str:
    """The expression of the task, or one with a mistake: another digit or operator, or another task's."""
    if rng.random() < RIGHT:
        return task.expression
    if task.family not in ARITHMETIC:
        return rng.choice(known).expression
    places = [place for place, sign in enumerate(task.expression) if sign.isdigit() or sign in OPERATORS]
    place = rng.choice(places)
    other = str(rng.choice(DIGITS)) if task.expression[place].isdigit() else rng.choice(OPERATORS)
    return task.expression[:place] + other + task.expression[place + 1 :]
