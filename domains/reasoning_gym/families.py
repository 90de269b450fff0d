"""The families of the package reasoning-gym, made and checked: the only file that imports it.

Called by the loader, by the checks before a run and by the processes that score. A family with options and a
seed is deterministic, so a question travels as these and its index, and is made again where it is scored.
"""

import json
import os
import random
from ast import literal_eval
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache
from importlib import import_module
from typing import Any

from pipelinerl.base.errors import first_line, suggestion

REMEDY = "pip install 'pipelinerl[reasoning-gym]'"
OWN = {"seed": "it follows from the dataset's name", "size": "count says how many questions are used"}
"""Options that every family has and this domain decides."""
NO_DATA = {"composite": "composite mixes other families, name those"}
HASHED = frozenset(
    {
        "codeio",
        "intermediate_integration",
        "isomorphic_strings",
        "knight_swap",
        "polynomial_multiplication",
        "ransom_note",
        "word_ladder",
    }
)
"""Families that run through sets of strings and so depend on Python's hash seed, in their questions or their
answers; found by comparing up to 60 questions of each family under two seeds."""
EVALUATED = (
    "reasoning_gym.algorithmic.binary_matrix",
    "reasoning_gym.algorithmic.spiral_matrix",
    "reasoning_gym.algorithmic.string_insertion",
    "reasoning_gym.games.n_queens",
)
"""Modules whose verifiers look for a list in an answer with `eval`, which would run what a model wrote."""
DRAWS = 2_000
"""Questions of one seed; `acre` makes them all at once, within the deadline of its first verdict."""


class FamilyError(ValueError):
    """A family or an option that does not exist, or a package that is missing; one line with the remedy."""


def known() -> dict[str, tuple[type, type]]:
    """Class of the data set and of its options, by name. Raises FamilyError without the package."""
    try:
        import reasoning_gym  # noqa: F401  registers the families
        from reasoning_gym.factory import DATASETS

        for name in EVALUATED:  # a name of the module goes before the built-in function
            import_module(name).eval = literal_eval  # type: ignore[attr-defined]
    except ImportError as error:
        missing = f"{error.name} is not installed" if error.name else first_line(error)
        raise FamilyError(f"reasoning-gym cannot be imported, {missing}; {REMEDY}") from None
    return {name: found for name, found in DATASETS.items() if name not in NO_DATA}


def make(task: str, options: Mapping[str, Any], seed: int) -> Any:
    """The data set of a family: `[index]` gives `{question, answer, metadata}`.

    Raises FamilyError for a name or an option that does not exist, and for a value that the family refuses.
    """
    families = known()
    if task not in families:
        raise FamilyError(f"tasks.{task}: no such family; {NO_DATA.get(task) or suggestion(task, families)}")
    allowed = {field.name for field in fields(families[task][1])}
    for option in options:
        if option in OWN:
            raise FamilyError(f"tasks.{task}.{option}: leave it out; {OWN[option]}")
        if option not in allowed:
            raise FamilyError(
                f"tasks.{task}.{option}: no such option; {suggestion(option, allowed - OWN.keys())}"
            )
    if task in HASHED and not os.environ.get("PYTHONHASHSEED", "").isdecimal():
        raise FamilyError(
            f"tasks.{task}: makes other questions in each process unless strings have the same hashes; start "
            "the run with PYTHONHASHSEED=0 in its environment"
        )
    made, typed = families[task]
    try:
        return made(typed(**options, seed=seed, size=DRAWS))
    except Exception as error:  # what a family says of a value: an assertion, or any error of its constructor
        raise FamilyError(f"tasks.{task}={dict(options)}: {first_line(error)}") from None


@lru_cache(maxsize=128)
def cached(task: str, options: str, seed: int) -> Any:
    """`make` with its options as JSON; a process makes the same few data sets for every question."""
    return make(task, json.loads(options), seed)


@lru_cache(maxsize=1024)
def entry(task: str, options: str, seed: int, index: int) -> dict[str, Any]:
    """One question `{question, answer, metadata}`, kept for the other attempts of its group.

    Raises FamilyError where the family cannot make it.
    """
    try:
        made = cached(task, options, seed)
        with _drawing(f"{task}/{options}/{seed}/{index}"):
            return dict(made[index])
    except FamilyError:
        raise
    except Exception as error:  # found only by making it: an option that leaves nothing to choose from
        raise FamilyError(f"tasks.{task}={options}: {first_line(error)}") from None


@contextmanager
def _drawing(seed: str) -> Iterator[None]:
    """Python's process-wide generator as this seed leaves it: `list_functions` draws from it too."""
    others = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(others)
