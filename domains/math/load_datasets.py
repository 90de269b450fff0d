"""The loader under the module and the name that upstream's loaders of several domains import.

`from pipelinerl.domains.math.load_datasets import load_datasets`; the data are those of `data.py`.
"""

import random
from collections.abc import Sequence

from domains.math.data import Problem, load_problems


def load_datasets(
    dataset_names: Sequence[str] | str | None,
    seed: int | None = None,
    data_dir: str | None = None,
    max_problems: int | None = None,
    highest: int = 99,
    by_length: bool = False,
) -> list[Problem]:
    """`load_problems` as upstream calls it: one name or none is taken too, and a seed shuffles each dataset.

    Raises ValueError naming what cannot be read; a dataset of upstream's hub list must lie in `data_dir`.
    """
    names = [dataset_names] if isinstance(dataset_names, str) else dataset_names or []
    problems: list[Problem] = []
    for name in names:
        found = load_problems([name], data_dir, max_problems, highest, by_length)
        if seed is not None:
            random.Random(seed).shuffle(found)
        problems += found
    return problems
