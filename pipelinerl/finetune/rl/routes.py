"""Experts that engines sent the tokens of samples to, as one array of a packed row. Pure numpy.

`encode` (`batch.py`) asks for them; the trainer replays them (`pipelinerl/modeling/routing.py`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.modeling.prefixes import Prefixes


def routes_of_row(
    samples: Sequence[Sample], boundaries: np.ndarray, shared: np.ndarray | None
) -> dict[str, Any]:
    """The columns `routes`, `unrouted` and `disagreeing` of a row; nothing where no sample has a record.

    A token that samples share is computed once, so it has the experts of the first of them in the row that
    has a record of it. Raises ValueError for records of several models.
    """
    given = [sample.routed_experts for sample in samples if sample.routed_experts is not None]
    if not given:
        return {}
    shapes = {one.shape[1:] for one in given}
    if len(shapes) > 1:
        names = ", ".join(sample.name for sample in samples if sample.routed_experts is not None)
        raise ValueError(f"routed experts of {sorted(shapes)} in one row (samples {names[:80]}); one model")
    path = None if shared is None else Prefixes(boundaries, shared).path
    size = int(boundaries[-1]) if shared is None else int(boundaries[-1] - shared.sum())
    routes = np.zeros((size, *given[0].shape[1:]), np.result_type(*given))
    known, disagreeing = np.zeros(size, bool), 0
    for sample, start in zip(samples, boundaries.tolist()):
        record = sample.routed_experts
        if record is None or not len(record):
            continue
        at = np.arange(start, start + len(record)) if path is None else path[start : start + len(record)]
        again = known[at]
        if again.any():
            both = (np.sort(one, -1) for one in (record[again], routes[at[again]]))
            disagreeing += int(np.not_equal(*both).any(axis=(1, 2)).sum())
        routes[at[~again]] = record[~again]
        known[at] = True
    return {
        "routes": routes,
        "unrouted": np.flatnonzero(~known).astype(np.int32),
        "disagreeing": disagreeing,
    }
