"""Best-fit-decreasing packing of texts into rows, balanced over trainer ranks. Pure numpy."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence

import numpy as np


def best_fit_decreasing(lengths: Sequence[int] | np.ndarray, capacity: int) -> list[list[int]]:
    """Pack items into as few bins of `capacity` as best fit decreasing finds; O(n log n).

    Returns bins of item indices, each bin in ascending index order. At most 11/9 of the optimum plus one
    bin (Johnson 1974). Raises ValueError when an item is empty or longer than a bin.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    for index in np.flatnonzero((sizes > capacity) | (sizes <= 0))[:1]:
        raise ValueError(f"item {index} has length {sizes[index]}, allowed are 1..{capacity}")
    bins: list[list[int]] = []
    space: list[tuple[int, int]] = []  # (free tokens, bin), ascending
    for item in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[item])
        at = bisect.bisect_left(space, (size, -1))
        if at == len(space):
            bins.append([item])
            bisect.insort(space, (capacity - size, len(bins) - 1))
        else:
            free, index = space.pop(at)
            bins[index].append(item)
            bisect.insort(space, (free - size, index))
    return [sorted(items) for items in bins]


def balance(loads: Sequence[int], ranks: int) -> list[list[int]]:
    """Spread bins over ranks: longest processing time first. Returns one list of bin indices per rank."""
    heap = [(0, rank) for rank in range(ranks)]
    out: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(range(len(loads)), key=lambda i: (-loads[i], i)):
        load, rank = heapq.heappop(heap)
        out[rank].append(index)
        heapq.heappush(heap, (load + loads[index], rank))
    return out


def pack(lengths: Sequence[int] | np.ndarray, capacity: int, ranks: int = 1) -> list[list[list[int]]]:
    """Texts of one optimizer step to `[rank][micro-batch][text index]`; a rank may stay empty."""
    sizes = np.asarray(lengths, dtype=np.int64)
    bins = best_fit_decreasing(sizes, capacity)
    while len(bins) < ranks and max((len(b) for b in bins), default=0) > 1:
        _split_largest(bins, sizes)
    loads = [int(sizes[items].sum()) for items in bins]
    return [[bins[i] for i in chosen] for chosen in balance(loads, ranks)]


def _split_largest(bins: list[list[int]], sizes: np.ndarray) -> None:
    """Cut the fullest divisible bin in two halves of about equal load, so that no rank idles."""
    index = max((i for i in range(len(bins)) if len(bins[i]) > 1), key=lambda i: int(sizes[bins[i]].sum()))
    items = bins.pop(index)
    halves = balance([int(sizes[i]) for i in items], 2)
    bins.extend(sorted(items[i] for i in half) for half in halves)
