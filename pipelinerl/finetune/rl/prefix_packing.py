"""Which samples share a row when they begin alike: a step's samples to ranks and rows. Pure numpy.

A row of samples in the order of their ids is a trie, whose nodes are computed once
(`pipelinerl/modeling/prefixes.py`). `assemble_step` calls `pack_prefixes` where prefixes are shared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelinerl.finetune.rl.packing import pack
from pipelinerl.modeling.prefixes import shared_with_previous

MOST_KEYS = 8
"""Keys that attention may gather for each token that is computed: they are copied, layer by layer."""
_CAPS = (1, 2, 4, 8)


@dataclass(slots=True)
class SortedIds:
    """Token ids of n samples in ascending order: where each lies, and what it shares with its predecessor.

    order int64 `[n]`: index of the sample at each place; shared int64 `[n]`: tokens that the sample at a
    place has in common, from the first on, with the one at the place before (0 at the first).
    """

    order: np.ndarray
    shared: np.ndarray

    @classmethod
    def of(cls, ids: Sequence[np.ndarray]) -> "SortedIds":
        """Sort int32 `[L_i]` sequences of non-negative ids; equal ones keep their order."""
        # As bytes, most significant first, ids compare as sequences do, and in C.
        texts = [np.asarray(one, ">u4").tobytes() for one in ids]
        order = sorted(range(len(ids)), key=texts.__getitem__)
        shared = shared_with_previous([ids[i] for i in order])
        return cls(np.array(order, np.int64), shared.astype(np.int64))

    def shared_of(self, places: np.ndarray) -> np.ndarray:
        """What each sample of a row, ascending int64 `[m]` places, shares with the one before it there."""
        # Between two sorted sequences lies nothing that has less in common with either than they have.
        out = np.zeros(len(places), np.int64)
        if len(places) > 1:
            ends = self.shared[: places[-1] + 1]
            out[1:] = np.minimum.reduceat(ends, places[:-1] + 1)
        return out


def pack_prefixes(
    ids: Sequence[np.ndarray], learned: Sequence[int], capacity: int, ranks: int = 1
) -> list[list[list[int]]]:
    """Samples of one optimizer step to `[rank][micro-batch][sample index]`; a rank may stay empty.

    As `packing.pack`, but a row holds at most `capacity` tokens of which none is counted twice, at most
    `capacity` of the `learned` tokens (per sample), and samples are in the order of their ids. Samples with
    the longest common prefixes are put together first. Raises ValueError for a sample longer than a row.
    """
    if not ids:
        return [[] for _ in range(ranks)]
    ordered = SortedIds.of(ids)
    lengths = np.array([len(ids[i]) for i in ordered.order], np.int64)
    terms = np.asarray(learned, np.int64)[ordered.order]
    best: tuple[int, list[list[list[int]]]] | None = None
    # Large clusters share more, small ones can be dealt more evenly. A rank of its own needs no dealing.
    for cap in _CAPS if ranks > 1 else _CAPS[:1]:
        clusters = _clusters(lengths, terms, ordered.shared, capacity // cap, capacity)
        loads = [_load(one, lengths, terms, ordered.shared) for one in clusters]
        plan = [
            [np.concatenate([np.arange(*clusters[i]) for i in sorted(row)]) for row in rows]
            for rows in pack(loads, capacity, ranks)
        ]
        busiest = max(
            sum(int(lengths[row].sum() - ordered.shared_of(row).sum()) for row in rows) for rows in plan
        )
        if best is None or busiest < best[0]:
            best = busiest, [[ordered.order[row].tolist() for row in rows] for rows in plan]
    assert best is not None
    return best[1]


def _load(cluster: tuple[int, int], lengths: np.ndarray, terms: np.ndarray, shared: np.ndarray) -> int:
    """Room that neighbours take in a row, in tokens."""
    begin, end = cluster
    raw = int(lengths[begin:end].sum())
    unique = raw - int(shared[begin + 1 : end].sum())
    return max(unique, int(terms[begin:end].sum()), -(-raw // MOST_KEYS))


def _clusters(
    lengths: np.ndarray, terms: np.ndarray, shared: np.ndarray, limit: int, capacity: int
) -> list[tuple[int, int]]:
    """Neighbours to be kept together, as ranges of places: longest common prefixes first, up to `limit`.

    A cluster that shares most of its tokens is worth a whole row, whatever the limit.
    """
    raw, unique, learned = lengths.copy(), lengths.copy(), terms.copy()
    first, last = np.arange(len(lengths)), np.arange(len(lengths))  # of the cluster at its ends
    for place in np.argsort(-shared, kind="stable").tolist():
        common = int(shared[place])
        if common == 0:
            break
        left, right = int(first[place - 1]), place
        together = (
            raw[left] + raw[right],
            unique[left] + unique[right] - common,
            learned[left] + learned[right],
        )
        room = capacity if 2 * common > min(unique[left], unique[right]) else limit
        if max(-(-int(together[0]) // MOST_KEYS), int(together[1]), int(together[2])) > room:
            continue
        raw[left], unique[left], learned[left] = together
        end = int(last[right])
        last[left], first[end] = end, left
    starts, place = [], 0
    while place < len(lengths):
        starts.append(place)
        place = int(last[place]) + 1
    return list(zip(starts, [*starts[1:], len(lengths)], strict=True))
