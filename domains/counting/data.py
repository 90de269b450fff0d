"""The loader of `counting`: generated rows, or those of local files in upstream's form.

Upstream's two names, `train_counting_problems` and `test_counting_problems`, are generated unless `data_dir`
names a folder; nothing is downloaded.
"""

import itertools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from domains.counting.questions import (
    KINDS,
    VOCABULARIES,
    Kind,
    Vocabulary,
    checked,
    draws,
    question,
)
from domains.rows import ENDINGS, checked_rows, find_file
from domains.split import check_counts, is_held_out, part_of

logger = logging.getLogger(__name__)

Problem = dict[str, Any]
DOMAIN = "counting"
PATIENCE = 10_000
"""Draws without a new question after which the evaluation is taken to have no more."""
_NO_FILE = "give a file, or leave dataset_loader_params.data_dir out and its questions are generated"


def load_problems(
    dataset_names: Sequence[str],
    data_dir: str | None = None,
    kinds: Sequence[Kind] = ("letters",),
    vocabulary: Vocabulary = "english",
    count: int = 1000,
    test_count: int = 100,
    held_out: float = 0.2,
) -> list[Problem]:
    """Problems `{id, task, kind, letter|text, word, count, dataset, domain}` of all names in their order.

    A name with an ending, or any name where `data_dir` is given, is a file. Others begin with `train` or
    `test` and are generated: of each kind `count` questions, or `test_count` different ones that training
    never asks, a share of `held_out` of all. Raises ValueError in one line, naming file and row.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise ValueError(f"kinds={list(kinds)}: choose from {', '.join(KINDS)}")
    if vocabulary not in VOCABULARIES:
        raise ValueError(f"vocabulary={vocabulary}: choose from {', '.join(VOCABULARIES)}")
    check_counts(count, test_count, held_out)
    problems: list[Problem] = []
    for name in map(str, dataset_names):
        if data_dir is not None or Path(name).suffix in ENDINGS:
            problems += _labelled(name, checked_rows(find_file(name, data_dir, _NO_FILE), checked))
            continue
        train = part_of(name) == "train"
        logger.info("dataset %s: generated questions, as data_dir names no folder", name)
        for kind in kinds:
            made = draws(name, kind, vocabulary)
            found = _training(made, count, held_out) if train else _evaluation(made, test_count, held_out)
            problems += _labelled(name, found, kind)
    return problems


def _labelled(name: str, found: Iterator[dict[str, Any]], kind: str | None = None) -> Iterator[Problem]:
    for index, row in enumerate(found):
        of = kind or ("words" if "text" in row else "letters")
        yield {
            "id": f"{name}/{of}-{index}",
            "task": question(row),
            "kind": of,
            **row,
            "dataset": name if kind is None else f"{name}/{of}",
            "domain": DOMAIN,
        }


def _training(made: Iterator[dict[str, Any]], count: int, share: float) -> Iterator[dict[str, Any]]:
    return itertools.islice((row for row in made if not is_held_out(question(row), share)), count)


def _evaluation(made: Iterator[dict[str, Any]], count: int, share: float) -> Iterator[dict[str, Any]]:
    seen, since = set[str](), 0
    for row in made:
        since += 1
        if (asked := question(row)) not in seen and is_held_out(asked, share):
            seen.add(asked)
            since = 0
            yield row
        if len(seen) == count or since == PATIENCE:
            return
