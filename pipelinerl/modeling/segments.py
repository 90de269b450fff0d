"""Which tokens of a packed row attend to which: boundaries of its sequences, and the prefixes they share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pipelinerl.modeling.branches import Branches
from pipelinerl.modeling.prefixes import Prefixes
from pipelinerl.modeling.seq_parallel import RowGroup
from pipelinerl.modeling.tensors import to_device

MAX_LENGTH_GRANULARITY = 64
MOST_LEVELS = 4
"""Of a trie: each is another pass over what lies below it."""
LEVELS_FROM = 3.0
"""Tokens of the samples for each computed one, from which levels are taken. At 6 (verdicts of 128 tokens
behind 1,024) they are faster than gathering keys, at 1.8 (512 behind 512) 3 % slower (one H200)."""


# Not frozen: of a frozen dataclass the compiler reads every field, and so compiled the layers anew for each
# number of texts in a row, until its limit of eight; from then on nothing was compiled any more.
@dataclass(eq=False)
class SharedKeys:
    """Keys of a row in which sequences share prefixes: all tokens of each segment's sequence, R in all.

    rows: int64 `[R]` on the model's device, the row's token behind each of them; order int64 `[R]`: the R
    sorted by that token, starts int64 `[L]`: where each token's begin in `order`. offsets, lengths and
    max_length are as in Segments, over the R.
    """

    rows: torch.Tensor
    order: torch.Tensor
    starts: torch.Tensor
    offsets: torch.Tensor
    lengths: tuple[int, ...]
    max_length: int


@dataclass(eq=False)
class Levels:
    """The same row as levels of a trie, for `prefix_attention`; empty where it has too many of them.

    Level 0 are all nodes, each reading itself; level d + 1 is what lies below the nodes of depth d and reads
    them. parts int64 `[1 + MOST_LEVELS, 5]` on the host: nodes (0: no such level), queries, keys, longest
    query, longest key; rows int64: of each level the row's tokens that read, then those that are read (of
    level 0 neither); offsets int32: of each level those of its nodes, `[nodes + 1]` twice.
    """

    offsets: torch.Tensor
    rows: torch.Tensor
    parts: torch.Tensor


@dataclass(eq=False)
class Near:
    """What layers with a sliding window read of a row in which sequences share prefixes.

    keys are those of `Segments.keys` that some token of their segment sees; levels are empty where the window
    cuts any sequence, because readers of one level stand at different positions.
    """

    window: int
    keys: SharedKeys
    levels: Levels


@dataclass(eq=False)
class Segments:
    """Where each sequence of a packed row `[1, L]` starts and ends.

    offsets: int32 `[n + 1]` on the model's device, first 0, last L (what variable-length kernels want).
    lengths: the same on the host, as Python ints, so that no kernel launch waits for the device.
    max_length: an upper bound of the lengths, rounded up so that compiled code sees few different values.
    keys and levels: None where a segment attends to itself only; else a segment is the end of its sequence,
    and what comes before lies in other segments.
    near: the same for layers with a sliding window, None for a model without them.
    branches: the same for layers with a state, None for a model without them.
    ranks: those that share the row, of which each computes a slice; None: this one computes all of it.
    """

    offsets: torch.Tensor
    lengths: tuple[int, ...]
    max_length: int
    keys: SharedKeys | None = None
    levels: Levels | None = None
    near: Near | None = None
    ranks: RowGroup | None = None
    branches: Branches | None = None

    def keys_within(self, window: int | None) -> SharedKeys | None:
        """What a layer with this window, or none, has to gather; None where segments attend to themselves."""
        near = self.near
        return self.keys if window is None or near is None or near.window != window else near.keys

    def levels_within(self, window: int | None) -> Levels | None:
        """The levels that a layer with this window, or none, may take."""
        if window is None or self.keys is None:
            return self.levels
        near = self.near
        return near.levels if near is not None and near.window == window else _no_levels(self.offsets.device)

    @classmethod
    def from_offsets(cls, offsets: np.ndarray, device: torch.device | str = "cpu") -> "Segments":
        """Build from host offsets int `[n + 1]`; raises ValueError when they do not ascend from 0."""
        return cls(*_spans(offsets, device))

    @classmethod
    def from_prefixes(
        cls,
        prefixes: Prefixes,
        device: torch.device | str = "cpu",
        window: int | None = None,
        kernel: int | None = None,
    ) -> "Segments":
        """Build for the samples of a row; one that adds nothing to it is no segment.

        window: of the model's layers with a sliding window, which it leaves fewer keys. kernel: tokens that
        the convolutions of its layers with a state look at.
        """
        lengths, new = np.diff(prefixes.boundaries), prefixes.new
        adds = new > 0
        shared, levels = _shared_keys(prefixes, lengths * adds, device), _levels(prefixes, device)
        near = None
        if window is not None:
            kept = np.minimum(lengths, new + window - 1) * adds
            cut = bool((lengths > window).any())
            near = Near(
                window,
                _shared_keys(prefixes, kept, device) if cut else shared,
                _no_levels(device) if cut else levels,
            )
        row = np.concatenate([[0], np.cumsum(new[adds])])
        branches = None if kernel is None else Branches.of(prefixes, kernel, device)
        return cls(*_spans(row, device), shared, levels, near, branches=branches)


def _shared_keys(prefixes: Prefixes, counts: np.ndarray, device: torch.device | str) -> SharedKeys:
    """Of the last `counts` int `[n]` tokens of each sample; 0 leaves a sample out."""
    lengths = np.diff(prefixes.boundaries)
    before_end = np.repeat(prefixes.boundaries[1:], lengths) - np.arange(prefixes.boundaries[-1])
    kept = prefixes.path[before_end <= np.repeat(counts, lengths)]
    order = np.argsort(kept, kind="stable")
    readers = np.bincount(kept)
    return SharedKeys(
        to_device(kept, device),
        to_device(order, device),
        to_device(np.cumsum(readers) - readers, device),
        *_spans(np.concatenate([[0], np.cumsum(counts[counts > 0])]), device),
    )


def _levels(prefixes: Prefixes, device: torch.device | str) -> Levels:
    offsets: list[np.ndarray] = []
    rows: list[np.ndarray] = []
    parts: list[tuple[int, ...]] = []
    shares = len(prefixes.path) >= LEVELS_FROM * len(prefixes.computed)
    nodes = prefixes.nodes if shares else np.zeros((0, 4), np.int64)
    depths = int(nodes[nodes[:, 2] > nodes[:, 1], 3].max(initial=-1)) + 1
    if shares and depths <= MOST_LEVELS:
        spans = np.concatenate([nodes[:, 0], nodes[-1:, 1]])
        longest = int(np.diff(spans).max())
        offsets, parts = [spans, spans], [(len(nodes), 0, 0, longest, longest)]
        for depth in range(depths):
            level = nodes[(nodes[:, 3] == depth) & (nodes[:, 2] > nodes[:, 1])]
            begin, end, last = level[:, 0], level[:, 1], level[:, 2]
            offsets += [np.concatenate([[0], np.cumsum(size)]) for size in (last - end, end - begin)]
            rows += [np.arange(*span) for span in zip(end, last, strict=True)]
            rows += [np.arange(*span) for span in zip(begin, end, strict=True)]
            sizes = (last - end).sum(), (end - begin).sum(), (last - end).max(), (end - begin).max()
            parts.append((len(level), *map(int, sizes)))
    return _as_levels(offsets, rows, parts, device)


def _as_levels(
    offsets: Sequence[np.ndarray],
    rows: Sequence[np.ndarray],
    parts: Sequence[tuple[int, ...]],
    device: torch.device | str,
) -> Levels:
    table = np.zeros((1 + MOST_LEVELS, 5), np.int64)
    table[: len(parts)] = np.array(parts).reshape(-1, 5)
    # Never empty: code that is compiled for a size of 0 is compiled for that alone.
    filled = (np.concatenate([*one, np.zeros(2)]) for one in (offsets, rows))
    spans, indices = (to_device(one.astype(kind), device) for one, kind in zip(filled, (np.int32, np.int64)))
    return Levels(spans, indices, torch.from_numpy(table))


def _no_levels(device: torch.device | str) -> Levels:
    return _as_levels([], [], [], device)


def _spans(offsets: np.ndarray, device: torch.device | str) -> tuple[torch.Tensor, tuple[int, ...], int]:
    lengths = np.diff(offsets)
    if len(offsets) < 2 or offsets[0] != 0 or (lengths <= 0).any():
        raise ValueError(f"segment offsets must ascend from 0, got {offsets[:8].tolist()}")
    bound = -(-int(lengths.max()) // MAX_LENGTH_GRANULARITY) * MAX_LENGTH_GRANULARITY
    return to_device(offsets.astype(np.int32), device), tuple(lengths.tolist()), bound
