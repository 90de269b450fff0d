"""What samples of a row have in common, and the row as trainer and reference compute it. Pure numpy.

A row of samples in the order of their ids is a trie (Fredkin 1960): each sample shares its first tokens with
the one before it and adds the rest. `pipelinerl/finetune/rl/prefix_packing.py` chooses the rows.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


def common_prefix(one: np.ndarray, other: np.ndarray) -> int:
    """Number of equal first elements of two arrays."""
    size = min(len(one), len(other))
    differs = one[:size] != other[:size]
    at = int(differs.argmax()) if size else 0
    return at if size and differs[at] else size


def shared_with_previous(ids: Sequence[np.ndarray]) -> np.ndarray:
    """int32 `[n]`: first elements that each sequence of a row has in common with the one before it."""
    found = [common_prefix(one, other) for one, other in itertools.pairwise(ids)]
    return np.array([0, *found][: len(ids)], np.int32)


@dataclass(frozen=True)
class Prefixes:
    """One row of n samples with R tokens in all, of which U are computed.

    boundaries int `[n + 1]`: where each sample lies among the R; shared int `[n]`: its first tokens that are
    those of the sample before it.
    """

    boundaries: np.ndarray
    shared: np.ndarray

    @cached_property
    def computed(self) -> np.ndarray:
        """int64 `[U]`: the tokens of the R that are computed, each sample's new ones in order."""
        new = self.new
        skipped = np.cumsum(self.shared, dtype=np.int64)  # up to each sample's first new token
        return np.arange(new.sum()) + np.repeat(skipped, new)

    @cached_property
    def path(self) -> np.ndarray:
        """int64 `[R]`: for each token of each sample the one of the U that stands for it."""
        path = np.empty(int(self.boundaries[-1]), np.int64)
        path[self.computed] = np.arange(len(self.computed))
        starts = self.boundaries.tolist()
        for sample, count in enumerate(self.shared.tolist()):
            if count:
                here, before = starts[sample], starts[sample - 1]
                path[here : here + count] = path[before : before + count]
        return path

    @cached_property
    def nodes(self) -> np.ndarray:
        """int64 `[m, 4]`, the row's trie in depth-first order: tokens that the same samples share.

        Of each node: where it begins and ends among the U, where what lies below it ends, and its depth.
        """
        lengths, shared = np.diff(self.boundaries).tolist(), self.shared.tolist()
        ends = np.cumsum(self.new).tolist()
        found: list[tuple[int, int, int]] = []
        # Prefixes of a sample that fewer and fewer of the samples behind it share, the longest last: its
        # length, and the first sample that has no more of it.
        cuts = [(0, len(lengths))]
        for sample in range(len(lengths) - 1, -1, -1):
            known, upper = shared[sample], lengths[sample]
            first = ends[sample] - upper  # where token 0 would lie among the U
            while upper > known:
                cut, leaves = cuts[-1]
                if cut > known:
                    cuts.pop()
                lower = max(cut, known)
                if upper > lower:
                    found.append((first + lower, first + upper, ends[leaves - 1]))
                upper = lower
            if cuts[-1][0] == known:
                cuts.pop()
            cuts.append((known, sample))
        nodes = np.array(found[::-1], np.int64).reshape(-1, 3)
        begins, lasts = nodes[:, 0], np.sort(nodes[:, 2])
        # Of the nodes before one, those that end before it begins do not lead to it.
        depths = np.arange(len(nodes)) - np.searchsorted(lasts, begins, side="right")
        return np.column_stack([nodes, depths])

    @property
    def new(self) -> np.ndarray:
        """int64 `[n]`: tokens that each sample adds; 0 for one that equals its predecessor."""
        return np.diff(self.boundaries).astype(np.int64) - self.shared


def distinct_pairs(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The different pairs of two int64 `[N]` columns, and int64 `[N]` of which pair each row is.

    Pairs are in the order in which they first appear.
    """
    keys = one * (int(other.max(initial=0)) + 1) + other
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    order = np.argsort(first)
    rank[order] = np.arange(len(first))
    return one[first[order]], other[first[order]], rank[inverse]
