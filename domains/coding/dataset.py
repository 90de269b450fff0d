"""Programming problems from local files in their published forms, or made here; nothing is downloaded.

The loader of `+domain=coding`, with the arguments that upstream's configurations give theirs. A name is a
file, a file of `data_dir` without its ending, or `tiny_train`, `tiny_test` and the like (`tiny.py`).
"""

import logging
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from domains.coding.formats import FORMS, chosen_cases, read_row, reference_of, refuse_imports
from domains.coding.references import Reference, unsolvable
from domains.coding.tiny import NAME as TINY
from domains.coding.tiny import problems as tiny_problems
from domains.rows import find_file, rows
from domains.split import split_rows

logger = logging.getLogger(__name__)

Problem = dict[str, Any]
Subset = Literal["train", "test", "all"]
DOMAIN = "coding"
DIVIDED = ("taco", "apps", "intellect3", "mixed")
"""Beginnings of names of data sets of which `subset` takes a part; the others are for evaluation."""


def load_problems(
    dataset_names: Sequence[str] | str | None = None,
    data_dir: str | None = None,
    subset: Subset = "train",
    split: Subset | None = None,
    train_ratio: float = 0.9,
    max_tests_per_problem: int | None = None,
    max_examples: int | None = None,
    seed: int | None = None,
    taco_split: str = "train",
    apps_split: str = "train",
    taco_excluded_difficulties: str | Sequence[str] | None = ("HARD", "VERY_HARD"),
    skip_apps: bool = False,
    huggingface_token: str | None = None,
    count: int = 1000,
    test_count: int = 64,
    check_references: bool = False,
    packages: Sequence[str] | None = None,
) -> list[Problem]:
    """Problems `{id, problem_id, task, reward_context, dataset, domain}` of all names, in their order.

    `subset` of a training set's rows in an order drawn once, of which `train_ratio` are `train`; `split`,
    by which a loader of several domains asks for a part, is of any data set. `seed` shuffles each data set,
    `max_examples` bounds it; of a problem's tests the first `max_tests_per_problem` (0: all) are kept, of
    LiveCodeBench's those of `chosen_cases`. Rows of TACO with `taco_excluded_difficulties`, upstream's by
    default, are left out before it is divided. `count` and `test_count` are of generated problems.
    `skip_apps` leaves the data set `apps` out. `check_references` leaves out rows whose own reference
    program is judged wrong, which nothing can solve; it runs each of them. `packages` are those that
    programs may import; rows whose tests import others are refused if it is given. `huggingface_token` is
    not used.
    Raises ValueError in one line naming what cannot be read.
    """
    if not {subset, split or subset} <= {*get_args(Subset)} or not 0.0 < train_ratio <= 1.0:
        raise ValueError(
            f"subset={subset!r}, train_ratio={train_ratio}: train, test or all; a share above 0, at most 1"
        )
    names = [dataset_names] if isinstance(dataset_names, str) else list(dataset_names or [])
    names = [name for name in names if not (skip_apps and name == "apps")]
    splits = {"taco": taco_split, "apps": apps_split}
    if isinstance(taco_excluded_difficulties, str):
        taco_excluded_difficulties = [taco_excluded_difficulties]
    excluded = set(taco_excluded_difficulties or ())
    problems: list[Problem] = []
    for name in map(str, names):
        if name.split("_")[0] == TINY:
            made = list(_tiny(name, test_count if name.startswith(f"{TINY}_test") else count))
            found = split_rows(made, split or "all", train_ratio)
        else:
            split_of = splits.get(name)
            read = _from_file(
                name, data_dir, split_of, excluded, check_references, packages, max_tests_per_problem
            )
            part = subset if name.startswith(DIVIDED) else "all"
            found = split_rows(read, split or part, train_ratio)
        if seed is not None:
            random.Random(seed).shuffle(found)
        for problem in found[:max_examples]:
            context = problem["reward_context"]
            for key in ("inputs", "outputs", "tests"):
                if key in context:
                    context[key] = context[key][: max_tests_per_problem or None]
            problems.append(problem)
    return problems


load_datasets = load_problems
"""The name that loaders of several domains import."""


def _problem(name: str, index: int, task: str, context: dict[str, Any]) -> Problem:
    return {
        "id": f"{name}-{index}",
        "problem_id": f"{name}_{index}",
        "task": task,
        "reward_context": context,
        "dataset": name,
        "domain": DOMAIN,
    }


def _tiny(name: str, count: int) -> Iterator[Problem]:
    for index, (task, context) in enumerate(tiny_problems(name, count)):
        yield _problem(name, index, task.question, context)


def _from_file(
    name: str,
    data_dir: str | None,
    split: str | None,
    excluded: set[str],
    checked: bool,
    packages: Sequence[str] | None,
    most: int | None,
) -> list[Problem | None]:
    """The problems, with None in the place of one that nothing can solve: parts do not hang on who judged."""
    found: list[Problem] = []
    references: list[Reference] = []
    difficult = 0
    for index, (where, row) in enumerate(rows(_file(name, data_dir, split))):
        if isinstance(row, dict) and row.get("difficulty") in excluded and name.startswith("taco"):
            difficult += 1
            continue
        try:
            task, context = read_row(row)
            if packages is not None:
                refuse_imports(context, packages)
            context |= chosen_cases(row, context, most, index)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        found.append(_problem(name, index, task, context))
        if checked and (program := reference_of(row)) is not None:
            references.append(Reference(found[-1]["id"], where, program, context))
    if difficult:
        logger.info(
            "dataset %s: %d rows of the difficulties %s left out; taco_excluded_difficulties=[] keeps them",
            name,
            difficult,
            ", ".join(sorted(excluded)),
        )
    wrong = unsolvable(name, references, packages or ())
    left = [None if problem["id"] in wrong else problem for problem in found]
    if not any(left):
        raise ValueError(f"dataset {name!r}: holds no problem")
    return left


def _file(name: str, data_dir: str | None, split: str | None) -> Path:
    """Raises ValueError that says which file is missing, and what it has to hold."""
    columns = next((text for form, text in FORMS.items() if Path(name).name.startswith(form)), None)
    holds = f"with columns {columns}" if columns else f"in one of the forms {', '.join(FORMS)}"
    remedy = f"put one {holds} there, set dataset_loader_params.data_dir, or use {TINY}_train and {TINY}_test"
    return find_file(name, data_dir, remedy, *([f"{Path(name).name}_{split}"] if split else []))
