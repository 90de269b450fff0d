"""Layers with a state over a row in which samples share prefixes: what each sequence goes on from.

`segments` builds this for models with such layers; `delta_net` and `delta_branches` read it. The row is a
trie (`prefixes.py`). A node whose state several branches go on from is a sequence that keeps its state; a
leaf is one that does not. Sequences of one depth are computed in one call, depth by depth, and all leaves in
the last. Each branch computes the tokens of a short shared node anew, which costs less than a state and
perhaps a call. So a sequence is a path through some nodes, and P tokens are computed for the U of the row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from pipelinerl.modeling.prefixes import Prefixes
from pipelinerl.modeling.tensors import to_device

SHORTEST = 64
"""Tokens from which a shared node keeps its state. With heads of 128 numbers, the queries, keys and values of
as many tokens take about the memory of the state, and kernels compute chunks of 64 tokens anyway."""


@dataclass(eq=False)
class Branches:
    """Sequences of a row, call by call; int64 on the model's device where nothing else is said.

    rows `[P]`: the row's token at each place of the calls; back `[U]`: a place of each token; order `[P]` and
    starts `[U]`: places in the order of their tokens, and where each token's begin there.
    parents: for each sequence the number of the state that it begins with; one past the last: zeros.
    offsets: int32, of each call those of its sequences, `[n + 1]`, first 0; on_host: the same on the host.
    table: on the host, of each call its sequences, its tokens, whether they keep their states, and whether
    any begins with one.
    heads `[h]`: tokens whose convolution reaches into another segment; sources `[W - 1, h]`: the tokens that
    lie 1, 2 … before, -1 for those of the same segment and where there are none.
    No dimension is 0 or 1, but those of a row of one token: code that is compiled for such a size is compiled
    for that alone.
    """

    rows: torch.Tensor
    back: torch.Tensor
    order: torch.Tensor
    starts: torch.Tensor
    parents: torch.Tensor
    offsets: torch.Tensor
    on_host: torch.Tensor
    table: torch.Tensor
    heads: torch.Tensor
    sources: torch.Tensor

    @classmethod
    def of(cls, prefixes: Prefixes, kernel: int, device: torch.device | str = "cpu") -> "Branches":
        """For the samples of a row; the convolution looks at `kernel` tokens."""
        calls = _calls(prefixes)
        rows = np.concatenate([np.arange(*span) for call in calls for one in call for span in one.spans])
        back = np.empty(len(prefixes.computed), np.int64)
        back[rows[::-1]] = np.arange(len(rows))[::-1]  # the first place of each
        readers = np.bincount(rows)
        kept = sum(map(len, calls[:-1]))
        parents = [kept if one.parent is None else one.parent for call in calls for one in call]
        offsets = [np.cumsum([0, *(one.length for one in call)]) for call in calls]
        table = [
            (len(call), sum(one.length for one in call), index < len(calls) - 1, _begins(call))
            for index, call in enumerate(calls)
        ]
        spans = np.concatenate(offsets).astype(np.int32)
        heads, sources = _reaching(prefixes, kernel)
        return cls(
            rows=to_device(rows, device),
            back=to_device(back, device),
            order=to_device(np.argsort(rows, kind="stable"), device),
            starts=to_device(np.cumsum(readers) - readers, device),
            parents=to_device(
                np.array([*parents, kept], np.int64), device
            ),  # one more, so that there are two
            offsets=to_device(spans, device),
            on_host=torch.from_numpy(spans),
            table=torch.from_numpy(np.array(table, np.int64).flatten()),
            heads=to_device(heads, device),
            sources=to_device(sources, device),
        )


class Call(NamedTuple):
    """Sequences that are computed together.

    places: of the P; states: its own among all that are kept, empty if it keeps none; begins: whether any of
    its parents is a state. offsets, on_host and parents as in Branches.
    """

    places: slice
    states: slice
    keeps: bool
    begins: bool
    parents: torch.Tensor
    offsets: torch.Tensor
    on_host: torch.Tensor


def calls_of(
    parents: torch.Tensor, offsets: torch.Tensor, on_host: torch.Tensor, table: torch.Tensor
) -> Iterator[Call]:
    """The calls that fields of Branches describe."""
    first, token, kept = 0, 0, 0
    for number, (count, tokens, keeps, begins) in enumerate(table.view(-1, 4).tolist()):
        spans = slice(first + number, first + number + count + 1)
        yield Call(
            slice(token, token + tokens),
            slice(kept, kept + keeps * count),
            bool(keeps),
            bool(begins),
            parents[first : first + count],
            offsets[spans],
            on_host[spans],
        )
        first, token, kept = first + count, token + tokens, kept + keeps * count


class _Sequence(NamedTuple):
    """Tokens that are computed from a state, as ranges of the U."""

    spans: tuple[tuple[int, int], ...]
    parent: int | None
    depth: int
    """States that lie before it."""

    @property
    def length(self) -> int:
        return sum(end - begin for begin, end in self.spans)


def _begins(call: list[_Sequence]) -> bool:
    return any(one.parent is not None for one in call)


def _calls(prefixes: Prefixes) -> list[list[_Sequence]]:
    """Sequences that keep their states, by depth, and the leaves last; parents are numbered in that order."""
    kept, leaves = _sequences(prefixes.nodes)
    order = sorted(range(len(kept)), key=lambda place: kept[place].depth)
    rank: dict[int | None, int | None] = {place: number for number, place in enumerate(order)}
    rank[None] = None
    by_depth = [kept[place] for place in order]
    depths = [[one for one in by_depth if one.depth == depth] for depth in {one.depth: 0 for one in by_depth}]
    return [[one._replace(parent=rank[one.parent]) for one in call] for call in (*depths, leaves)]


def _sequences(nodes: np.ndarray) -> tuple[list[_Sequence], list[_Sequence]]:
    """Those that keep their states, parents numbered as they come, and the leaves; of `Prefixes.nodes`."""
    path: list[int] = []
    children, parents = [0] * len(nodes), list[int | None]()
    for index, depth in enumerate(nodes[:, 3].tolist()):
        path[depth:] = [index]
        parents.append(path[depth - 1] if depth else None)
        if depth:
            children[path[depth - 1]] += 1
    kept, leaves = list[_Sequence](), list[_Sequence]()
    passed: list[_Sequence] = []  # what the children of each node begin with
    for index, (begin, end) in enumerate(nodes[:, :2].tolist()):
        upper = parents[index]
        before = _Sequence((), None, 0) if upper is None else passed[upper]
        one = before._replace(spans=(*before.spans, (begin, end)))
        if children[index] > 1 and one.length >= SHORTEST:
            passed.append(_Sequence((), len(kept), one.depth + 1))
            kept.append(one)
        else:  # with one child there is nothing to copy
            passed.append(one)
            if not children[index]:
                leaves.append(one)
    return kept, leaves


def _reaching(prefixes: Prefixes, kernel: int) -> tuple[np.ndarray, np.ndarray]:
    """Heads and sources, as in Branches."""
    new, shared = prefixes.new, prefixes.shared.astype(np.int64)
    branch = np.flatnonzero((new > 0) & (shared > 0))
    place = np.arange(kernel - 1)  # of a head in its segment
    begins = np.cumsum(new) - new
    inside = place[None] < new[branch, None]
    heads = (begins[branch, None] + place)[inside]
    position = (shared[branch, None] + place)[inside]
    behind = np.broadcast_to(place, inside.shape)[inside]
    first = np.broadcast_to(prefixes.boundaries[branch, None], inside.shape)[inside].astype(np.int64)
    back = np.arange(1, kernel)[:, None]
    there = (back > behind) & (back <= position)
    sources = np.where(there, prefixes.path[first + np.maximum(position - back, 0)], -1)
    # Two more that add nothing, so that there are never fewer.
    heads = np.concatenate([heads, np.zeros(2, np.int64)])
    return heads, np.concatenate([sources, np.full((kernel - 1, 2), -1)], axis=1)
