"""Answers for a small model to imitate: right ones, or careless ones, of which most are wrong in one way.

The careless answer does half of the work: it reads the question, answers in its form and skips the thinking.
It is given more often than the right one, so that it is also what a model that imitates it says when it is
asked for its most likely answer.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from omegaconf import DictConfig

from domains.prompts import check_bare
from domains.reasoning_gym.data import load_problems
from domains.reasoning_gym.families import entry
from pipelinerl.extras.bootstrap.demonstrations import Demonstration

Mistake = Callable[[Mapping[str, Any]], str]
"""A careless answer to a question of a family, `{question, answer, metadata}`."""
PER_SEED = 200
CARELESS = 0.6
"""Share of careless answers in the phase of that name."""


def _beginning(texts: Sequence[str]) -> str:
    """What all of them begin with."""
    return "".join(column[0] for column in takewhile(lambda column: len({*column}) == 1, zip(*texts)))


def unchanged(found: Mapping[str, Any]) -> str:
    """The numbers as they stand in the question."""
    return str(found["metadata"]["original_numbers"])


def unreversed(found: Mapping[str, Any]) -> str:
    """The words as they stand in the question."""
    return ", ".join(found["metadata"]["words"])


MISTAKES: dict[str, Mistake] = {
    "number_filtering": unchanged,
    "number_sorting": unchanged,
    "word_sequence_reversal": unreversed,
}
"""How a family is answered without care."""
SHARED, SEEN = 8, 50
"""Characters of what counts as shared by questions, and how many of them are looked at."""


def pieces() -> tuple[str, ...]:
    """With what all questions of a family begin and end, which a small model need not read word by word."""
    found = []
    for family in MISTAKES:
        asked = [str(entry(family, "{}", 0, index)["question"]) for index in range(SEEN)]
        found += [_beginning(asked), _beginning([one[::-1] for one in asked])[::-1]]
    return tuple(dict.fromkeys(piece for piece in found if len(piece) >= SHARED))


def demonstrations(
    cfg: DictConfig,
    domain: str,
    seed: int,
    phase: str,
    mistakes: Mapping[str, Mistake],
    family_of: Callable[[str], str] = str,
) -> Iterator[Demonstration]:
    """Answers to PER_SEED questions of a domain's tasks that training may ask: right, or careless.

    `mistakes` are of tasks; `family_of` gives the family of one, which is its name unless said otherwise.
    Raises ValueError for a task without a mistake and for a prompt that is more than the question.
    """
    check_bare(cfg, domain)
    params, careless = cfg.dataset_loader_params, phase == "careless"
    tasks = {task: options for task, options in params.tasks.items() if options is not None}
    unknown = [task for task in tasks if task not in mistakes]
    if unknown:
        raise ValueError(f"tasks.{unknown[0]}: has no demonstrations; those with are {', '.join(mistakes)}")
    rng = random.Random(f"{domain} demonstrations {seed}")
    for task, options in tasks.items():
        wanted, count = {family_of(task): options}, PER_SEED // len(tasks)
        for one in load_problems([f"train_{seed}"], wanted, count, 1, params.held_out):
            found = entry(one["task"], one["options"], one["seed"], one["index"])
            wrong = careless and rng.random() < CARELESS
            said = mistakes[task](found) if wrong else found["answer"]
            yield Demonstration(task, one["question"], said, exact=not careless)
