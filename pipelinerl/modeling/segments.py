"""Boundaries of the sequences that share one packed row."""

from dataclasses import dataclass

import numpy as np
import torch

from pipelinerl.modeling.tensors import to_device

MAX_LENGTH_GRANULARITY = 64


# Not frozen: of a frozen dataclass the compiler reads every field, and so compiled the layers anew for each
# number of texts in a row, until its limit of eight; from then on nothing was compiled any more.
@dataclass(eq=False)
class Segments:
    """Where each sequence of a packed row `[1, L]` starts and ends.

    offsets: int32 `[n + 1]` on the model's device, first 0, last L (what variable-length kernels want).
    lengths: the same on the host, as Python ints, so that no kernel launch waits for the device.
    max_length: an upper bound of the lengths, rounded up so that compiled code sees few different values.
    """

    offsets: torch.Tensor
    lengths: tuple[int, ...]
    max_length: int

    @classmethod
    def from_offsets(cls, offsets: np.ndarray, device: torch.device | str = "cpu") -> "Segments":
        """Build from host offsets int `[n + 1]`; raises ValueError when they do not ascend from 0."""
        lengths = np.diff(offsets)
        if len(offsets) < 2 or offsets[0] != 0 or (lengths <= 0).any():
            raise ValueError(f"segment offsets must ascend from 0, got {offsets[:8].tolist()}")
        bound = -(-int(lengths.max()) // MAX_LENGTH_GRANULARITY) * MAX_LENGTH_GRANULARITY
        return cls(to_device(offsets.astype(np.int32), device), tuple(lengths.tolist()), bound)
