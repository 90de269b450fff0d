"""Which tokens of a packed row attend to which: boundaries of its sequences, and the prefixes they share."""

from dataclasses import dataclass

import numpy as np
import torch

from pipelinerl.modeling.tensors import to_device

MAX_LENGTH_GRANULARITY = 64


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
class Segments:
    """Where each sequence of a packed row `[1, L]` starts and ends.

    offsets: int32 `[n + 1]` on the model's device, first 0, last L (what variable-length kernels want).
    lengths: the same on the host, as Python ints, so that no kernel launch waits for the device.
    max_length: an upper bound of the lengths, rounded up so that compiled code sees few different values.
    keys: None where a segment attends to itself only; else a segment is the end of its sequence, and what
    comes before lies in other segments.
    """

    offsets: torch.Tensor
    lengths: tuple[int, ...]
    max_length: int
    keys: SharedKeys | None = None

    @classmethod
    def from_offsets(cls, offsets: np.ndarray, device: torch.device | str = "cpu") -> "Segments":
        """Build from host offsets int `[n + 1]`; raises ValueError when they do not ascend from 0."""
        return cls(*_spans(offsets, device))

    @classmethod
    def from_prefixes(
        cls, new: np.ndarray, lengths: np.ndarray, path: np.ndarray, device: torch.device | str = "cpu"
    ) -> "Segments":
        """Build for n sequences of int `[n]` `lengths` that add `new` tokens each to the row.

        path int `[sum of lengths]`: the row's token for each token of each sequence. A sequence that adds
        nothing is no segment.
        """
        adds = new > 0
        kept = path[np.repeat(adds, lengths)]
        row, keys = (np.concatenate([[0], np.cumsum(one[adds])]) for one in (new, lengths))
        order = np.argsort(kept, kind="stable")
        starts = np.searchsorted(kept[order], np.arange(row[-1]))
        gathered = (to_device(one.astype(np.int64), device) for one in (kept, order, starts))
        return cls(*_spans(row, device), SharedKeys(*gathered, *_spans(keys, device)))


def _spans(offsets: np.ndarray, device: torch.device | str) -> tuple[torch.Tensor, tuple[int, ...], int]:
    lengths = np.diff(offsets)
    if len(offsets) < 2 or offsets[0] != 0 or (lengths <= 0).any():
        raise ValueError(f"segment offsets must ascend from 0, got {offsets[:8].tolist()}")
    bound = -(-int(lengths.max()) // MAX_LENGTH_GRANULARITY) * MAX_LENGTH_GRANULARITY
    return to_device(offsets.astype(np.int32), device), tuple(lengths.tolist()), bound
