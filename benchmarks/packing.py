"""Packing: how full rows are and how even ranks, beside filling rows in arrival order; prefix tries.

    python -m benchmarks.packing [--texts 1024] [--capacity 12000] [--ranks 8] [--draws 20]

Log-normal lengths, several draws; the goals are for the mean fill and for the worst draw's balance. Tries are
made of 2,048 samples of 4,096 tokens, in groups of 8 that share the first half, for 1, 2 and 8 ranks: which
samples share a row, and what each of them shares with the one before it. Their goal is for the slowest.
Times are those of the processor, one core.
"""

import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks._figures import Figure, at_least, at_most, command_line, report
from benchmarks._texts import random_groups
from pipelinerl.finetune.rl.packing import pack
from pipelinerl.finetune.rl.prefix_packing import pack_prefixes
from pipelinerl.modeling.prefixes import shared_with_previous

Plan = list[list[list[int]]]
GROUPS, ATTEMPTS, HALF, VOCABULARY = 256, 8, 2048, 150_000
TRIE_RANKS = (1, 2, 8)
TRIE_GOAL_MS = 500.0


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


def trie(ids: Sequence[np.ndarray], learned: Sequence[int], capacity: int, ranks: int) -> tuple[float, int]:
    """Milliseconds that the rows of a step take, and the tokens of the samples that are not computed."""
    start = time.process_time()
    plan = pack_prefixes(ids, learned, capacity, ranks)
    shared = [shared_with_previous([ids[i] for i in row]) for rank in plan for row in rank]
    return 1e3 * (time.process_time() - start), sum(int(row.sum()) for row in shared)


def trie_figures(capacity: int, repeats: int) -> Iterator[Figure]:
    samples = random_groups(GROUPS, ATTEMPTS, HALF, HALF, VOCABULARY)
    random.Random(0).shuffle(samples)  # nothing may depend on groups lying together
    ids, learned = [one.input_ids for one in samples], [len(one.old_logprobs) for one in samples]
    tokens, medians = sum(map(len, ids)), []
    for ranks in TRIE_RANKS:
        times, shared = zip(*(trie(ids, learned, capacity, ranks) for _ in range(repeats)), strict=True)
        medians.append(statistics.median(times))
        yield Figure(f"tries, ranks {ranks}: time of a step's plan, median", medians[-1], "ms")
        yield Figure(f"tries, ranks {ranks}: tokens for each computed", tokens / (tokens - shared[0]), "x")
    yield at_most("tries: time of a step's plan, slowest", max(medians), "ms", TRIE_GOAL_MS)


def main() -> int:
    options = command_line(__doc__)
    ours, naive, seconds = [], [], []
    for seed in range(options.draws):
        lengths = np.random.default_rng(seed).lognormal(7.0, 1.0, options.texts)
        lengths = np.clip(lengths, 8, options.capacity).astype(np.int64)
        start = time.process_time()
        plan = pack(lengths, options.capacity, options.ranks)
        seconds.append(time.process_time() - start)
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
        *trie_figures(options.capacity, options.draws),
    ]
    report("packing", figures, vars(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
