"""Questions and gold answers, those of `math`, under the names of upstream's configurations."""

import functools
from collections.abc import Sequence
from typing import Any

from domains.math import load_datasets as questions
from domains.math.data import Problem
from domains.tir.settings import KEY

__all__ = ["load_datasets", "load_problems"]


@functools.wraps(questions)  # so that its parameters are seen
def load_datasets(dataset_names: Sequence[str] | str | None, **params: Any) -> list[Problem]:
    """The problems of `domains.math.load_datasets`, with its parameters and errors, in the domain `tir`."""
    return [{**problem, "domain": KEY} for problem in questions(dataset_names, **params)]


load_problems = load_datasets
"""The name that loaders of several domains look for."""
