"""Packing: how full rows are and how even ranks, beside filling rows in arrival order.

    python -m benchmarks.packing [--texts 1024] [--capacity 12000] [--ranks 8] [--draws 20]

Log-normal lengths, several draws; the goals are for the mean fill and for the worst draw's balance.
"""

import sys
import time

import numpy as np

from benchmarks._figures import Figure, at_least, at_most, command_line, report
from pipelinerl.finetune.rl.packing import pack

Plan = list[list[list[int]]]


def in_order(lengths: np.ndarray, capacity: int, ranks: int) -> Plan:
    """The naive way: equal numbers of texts per rank, each rank fills rows in arrival order."""
    plan: Plan = []
    for part in np.array_split(np.arange(len(lengths)), ranks):
        rows: list[list[int]] = [[]]
        used = 0
        for item in part.tolist():
            if used + lengths[item] > capacity:
                rows.append([])
                used = 0
            rows[-1].append(item)
            used += int(lengths[item])
        plan.append(rows)
    return plan


def fill_and_excess(plan: Plan, lengths: np.ndarray, capacity: int) -> tuple[float, float]:
    """Share of the rows' room that holds tokens, tokens of the busiest rank beyond the mean; both in %."""
    rows = sum(len(rank) for rank in plan)
    loads = [sum(int(lengths[row].sum()) for row in rank) for rank in plan]
    return 100 * float(lengths.sum()) / (rows * capacity), 100 * (max(loads) / (sum(loads) / len(loads)) - 1)


def main() -> int:
    options = command_line(__doc__)
    ours, naive, seconds = [], [], []
    for seed in range(options.draws):
        lengths = np.random.default_rng(seed).lognormal(7.0, 1.0, options.texts)
        lengths = np.clip(lengths, 8, options.capacity).astype(np.int64)
        start = time.perf_counter()
        plan = pack(lengths, options.capacity, options.ranks)
        seconds.append(time.perf_counter() - start)
        ours.append(fill_and_excess(plan, lengths, options.capacity))
        simple = in_order(lengths, options.capacity, options.ranks)
        naive.append(fill_and_excess(simple, lengths, options.capacity))
    (fill, excess), (naive_fill, naive_excess) = np.array(ours).T, np.array(naive).T
    figures = [
        at_least("fill of rows, mean", fill.mean(), "%", 99.0),
        Figure("fill of rows, worst draw", fill.min(), "%"),
        at_most("busiest rank beyond the mean, worst draw", excess.max(), "%", 2.0),
        Figure("busiest rank beyond the mean, mean", excess.mean(), "%"),
        Figure("time of a step's plan, median", float(np.median(seconds)) * 1e3, "ms"),
        Figure("arrival order: fill of rows, mean", naive_fill.mean(), "%"),
        Figure("arrival order: busiest rank, worst draw", naive_excess.max(), "%"),
        Figure("ratio of fill", fill.mean() / naive_fill.mean(), "x"),
    ]
    report("packing", figures, vars(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
