"""A packed row as the model computes it: each token once, however many samples begin with it."""

from dataclasses import dataclass

import numpy as np
import torch

from pipelinerl.modeling.prefixes import Prefixes
from pipelinerl.modeling.segments import Segments


@dataclass(frozen=True)
class Row:
    """What a forward pass gets for samples one behind the other, R tokens in all, U of them computed.

    input_ids and position_ids int64 `[1, U]`; boundaries int `[n + 1]`, of the samples among the R.
    """

    input_ids: np.ndarray
    position_ids: np.ndarray
    boundaries: np.ndarray
    prefixes: Prefixes | None

    @classmethod
    def of(
        cls,
        input_ids: np.ndarray,
        position_ids: np.ndarray,
        boundaries: np.ndarray,
        prefixes: Prefixes | None = None,
    ) -> "Row":
        """From ids and positions int `[R]`; without `prefixes` every token is computed."""
        if prefixes is not None:
            input_ids, position_ids = input_ids[prefixes.computed], position_ids[prefixes.computed]
        ids, positions = (one.astype(np.int64)[None] for one in (input_ids, position_ids))
        return cls(ids, positions, boundaries, prefixes)

    def segments(
        self, device: torch.device | str, window: int | None = None, kernel: int | None = None
    ) -> Segments:
        """Which token attends to which, and goes on from which.

        window: of the model's layers that have one; kernel: tokens that the convolutions of its layers with a
        state look at.
        """
        if self.prefixes is None:
            return Segments.from_offsets(self.boundaries, device)
        return Segments.from_prefixes(self.prefixes, device, window, kernel)

    def computed(self, at: np.ndarray) -> np.ndarray:
        """Where the tokens at int64 `[N]` of the R lie among the U."""
        return at if self.prefixes is None else self.prefixes.path[at]
