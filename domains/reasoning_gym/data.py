"""Questions of a mixture of families; training, validation and evaluation never share the text of a question.

The loader of `+domain=reasoning_gym`. A question belongs to one of them by a hash of its text alone, so that
they are disjoint whatever the seeds, the options and the names, also in a family that has only a hundred
questions.
"""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from domains.blocks import options_of
from domains.reasoning_gym.families import DRAWS, entry
from domains.split import PARTS, check_counts, is_held_out, part_of

Problem = dict[str, Any]
Tasks = Mapping[str, Mapping[str, Any] | None]
DOMAIN = "reasoning_gym"
PATIENCE = 2_000
"""Draws without a new question after which a family is taken to have no more."""

chosen = partial(options_of, "tasks", "family", "{chain_sum: {}}")
logger = logging.getLogger(__name__)


def load_problems(
    dataset_names: Sequence[str],
    tasks: Tasks,
    count: int = 1000,
    test_count: int = 64,
    held_out: float = 0.2,
    validation: float = 0.0,
) -> list[Problem]:
    """Problems `{id, task, options, seed, index, question, dataset, domain}`; `options` is JSON text.

    A name begins with `train`, `val` or `test`; other endings mean other seeds (`train_2`). For each name and
    family: `count` questions as the family draws them, which may repeat, or `test_count` different ones,
    fewer if the family has no more. `held_out` is the share of a family's questions that only `test` asks,
    `validation` the share that only `val` asks: by these a run may be judged while the others stay unseen.
    A family whose options are null is left out. Raises ValueError in one line.
    """
    families = chosen(tasks)
    check_counts(count, test_count, held_out)
    if not 0.0 <= validation < 1.0 - held_out:
        raise ValueError(
            f"validation={validation}: a share of at least 0 that leaves training questions beside "
            f"held_out={held_out}"
        )
    shares = {"test": (0.0, held_out), "val": (held_out, held_out + validation)}
    problems: list[Problem] = []
    for name in dataset_names:
        part = part_of(name, (*PARTS, "val"))
        if part == "val" and not validation:
            raise ValueError(f"dataset {name!r}: give dataset_loader_params.validation, such as 0.1")
        for task, options in families.items():
            if part == "train":
                problems += _training(name, task, options, count, held_out + validation)
            else:
                problems += _evaluation(name, task, options, test_count, shares[part])
    return problems


def _training(name: str, task: str, options: str, count: int, share: float) -> Iterator[Problem]:
    """`count` questions in the family's own distribution, without the share that training never asks."""
    found, since = 0, 0
    for problem in _draws(name, task, options):
        if since == PATIENCE:
            raise ValueError(
                f"tasks.{task}: each of {PATIENCE} questions is held out; lower held_out or validation"
            )
        since += 1
        if not is_held_out(problem["question"], share):
            yield problem
            found, since = found + 1, 0
        if found == count:
            return


def _evaluation(
    name: str, task: str, options: str, count: int, share: tuple[float, float]
) -> Iterator[Problem]:
    """At most `count` different questions whose hashes lie in the half-open share [from, to)."""
    begin, end = share
    seen, since = set[str](), 0
    for problem in _draws(name, task, options):
        since += 1
        text = problem["question"]
        if text not in seen and is_held_out(text, end) and not is_held_out(text, begin):
            yield problem
            seen.add(text)
            since = 0
        if len(seen) == count:
            return
        if since == PATIENCE:
            break
    if not seen:
        key = "validation" if begin else "held_out"
        raise ValueError(f"tasks.{task}: none of {PATIENCE} questions is held out; raise {key}")
    logger.info("family %s: %d questions are held out, fewer than test_count=%d", task, len(seen), count)


def _draws(name: str, task: str, options: str) -> Iterator[Problem]:
    """Questions as the family draws them, without end; the same for the same arguments."""
    for block in itertools.count():
        # Hashed: families add the index to the seed, so neighbouring seeds repeat each other's questions.
        seed = int.from_bytes(sha256(f"{name}/{task}/{block}".encode()).digest()[:4]) >> 1
        for index in range(DRAWS):
            yield {
                "id": f"{name}/{task}-{block * DRAWS + index}",
                "task": task,
                "options": options,
                "seed": seed,
                "index": index,
                "question": entry(task, options, seed, index)["question"],
                "dataset": f"{name}/{task}",
                "domain": DOMAIN,
            }
