"""Best-fit-decreasing packing of samples into rows, with tokens balanced over trainer ranks. Pure numpy.

`assemble_step` calls it for each optimizer step whose samples share no tokens.
"""

import bisect
import heapq
from collections.abc import Sequence

import numpy as np

TOLERANCE = 0.02
"""Tokens of the busiest rank beyond the mean, as a share, that are not worth another row."""
ENOUGH = 0.001
"""The same share at which exchanging samples between ranks ends."""
_MOST_EXCHANGES = 200
_ROWS_TRIED = 8
_FURTHER_ROWS = 2
_NOBODY = -1


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


def balance(loads: Sequence[int] | np.ndarray, ranks: int) -> list[list[int]]:
    """Spread items over ranks: longest processing time first. Returns one list of indices per rank.

    Items without a load go where the fewest items are.
    """
    heap = [(0, 0, rank) for rank in range(ranks)]
    out: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(range(len(loads)), key=lambda i: (-loads[i], i)):
        if loads[index] == 0:
            min(out, key=len).append(index)
            continue
        load, items, rank = heapq.heappop(heap)
        out[rank].append(index)
        heapq.heappush(heap, (load + int(loads[index]), items + 1, rank))
    return out


def pack(lengths: Sequence[int] | np.ndarray, capacity: int, ranks: int = 1) -> list[list[list[int]]]:
    """Samples of one optimizer step to `[rank][micro-batch][sample index]`; a rank may stay empty.

    As few rows as best fit decreasing finds, dealt to the ranks and evened out by exchanging samples. Rows
    are added where the busiest rank would otherwise have more than TOLERANCE beyond the mean, because a step
    takes as long as its busiest rank and rows are not filled up with padding. If that does not do (a few long
    samples), samples are dealt to the ranks first and each packs its own.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    limit = (1 + TOLERANCE) * float(sizes.sum()) / ranks
    rows = best_fit_decreasing(sizes, capacity)
    while _least_busiest(len(rows), int(sizes.sum()), capacity, ranks) > limit:
        rows.append([])
    plan = _dealt(rows, sizes, capacity, ranks)
    for _ in range(_FURTHER_ROWS):
        if _busiest(plan, sizes) <= limit:
            break
        rows.append([])
        plan = min(plan, _dealt(rows, sizes, capacity, ranks), key=lambda p: _busiest(p, sizes))
    if _busiest(plan, sizes) > limit:
        chosen = [np.array(texts, np.int64) for texts in balance(sizes, ranks)]
        own = [[c[row].tolist() for row in best_fit_decreasing(sizes[c], capacity)] for c in chosen]
        plan = min(own, plan, key=lambda p: _busiest(p, sizes))
    return [[sorted(row) for row in rank if row] for rank in plan]


def _least_busiest(n_rows: int, tokens: int, capacity: int, ranks: int) -> float:
    """The fewest tokens of the busiest rank if rows are dealt evenly and then filled at will."""
    fewest, with_more = divmod(n_rows, ranks)
    others = min((ranks - with_more) * fewest * capacity, tokens * (ranks - with_more) / ranks)
    return (tokens - others) / with_more if with_more else tokens / ranks


def _dealt(rows: list[list[int]], sizes: np.ndarray, capacity: int, ranks: int) -> list[list[list[int]]]:
    """Rows dealt to the ranks, then evened out."""
    dealt = balance([int(sizes[row].sum()) for row in rows], ranks)
    return _evened([[list(rows[i]) for i in chosen] for chosen in dealt], sizes, capacity)


def _load(rows: list[list[int]], sizes: np.ndarray) -> int:
    return sum(int(sizes[row].sum()) for row in rows)


def _busiest(plan: list[list[list[int]]], sizes: np.ndarray) -> int:
    return max(_load(rank, sizes) for rank in plan)


def _evened(plan: list[list[list[int]]], sizes: np.ndarray, capacity: int) -> list[list[list[int]]]:
    """Exchange samples between rows of different ranks while that takes tokens off the busiest rank."""
    loads = np.array([_load(rank, sizes) for rank in plan])
    for _ in range(_MOST_EXCHANGES):
        giver, moved = int(loads.argmax()), 0
        for taker in np.argsort(loads, kind="stable").tolist():
            gap = int(loads[giver] - loads[taker])
            moved = _exchange(plan[giver], plan[taker], sizes, capacity, gap) if gap else 0
            if moved:
                loads[giver] -= moved
                loads[taker] += moved
                break
        if moved == 0 or loads.max() <= (1 + ENOUGH) * loads.mean():
            break
    return plan


def _exchange(
    giver: list[list[int]], taker: list[list[int]], sizes: np.ndarray, capacity: int, gap: int
) -> int:
    """Move a sample over, or let two change places, so that about half of `gap` moves; the tokens moved.

    Only the taker's emptiest rows are looked at. 0 when nothing fits.
    """
    free = np.array([capacity - int(sizes[row].sum()) for row in taker], np.int64)
    emptiest = np.argsort(-free, kind="stable")[:_ROWS_TRIED].tolist()
    places = [(row, item) for row in emptiest for item in (_NOBODY, *taker[row])]
    texts = [(row, item) for row, items in enumerate(giver) for item in items]
    if not places or not texts:
        return 0
    back = np.array([0 if item == _NOBODY else sizes[item] for _, item in places])
    moved = sizes[[item for _, item in texts]][:, None] - back[None]
    allowed = (moved > 0) & (moved < gap) & (moved <= free[[row for row, _ in places]][None])
    if not allowed.any():
        return 0
    distance = np.where(allowed, np.abs(2 * moved - gap), np.iinfo(np.int64).max)
    one, other = np.unravel_index(int(distance.argmin()), distance.shape)
    (from_row, text), (to_row, partner) = texts[one], places[other]
    giver[from_row].remove(text)
    taker[to_row].append(text)
    if partner != _NOBODY:
        taker[to_row].remove(partner)
        giver[from_row].append(partner)
    return int(moved[one, other])
