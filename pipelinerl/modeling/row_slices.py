"""Slices of a row that several ranks compute together, and the scores of all of its targets on each of them.

Scores are computed where the token lies that predicts the target, and then gathered: every rank has those of
the whole row, so that losses and metrics, also of samples that cross ranks, are computed as on one rank.
Called by the trainer (`finetune/step.py`) for each row; `modeling/seq_parallel.py` exchanges heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pipelinerl.modeling.prefixes import Prefixes
from pipelinerl.modeling.row import Row
from pipelinerl.modeling.seq_parallel import RowGroup, gather_parts


def filled_row(
    input_ids: np.ndarray,
    position_ids: np.ndarray,
    boundaries: np.ndarray,
    prefixes: Prefixes | None,
    count: int,
) -> Row:
    """`Row.of`, with as many computed tokens as `count` slices of one size have.

    What is missing is a sample of its own at the end, which nobody learns from.
    """
    missing = -(len(input_ids) if prefixes is None else len(prefixes.computed)) % count
    if missing:
        input_ids = np.concatenate([input_ids, np.zeros(missing, input_ids.dtype)])
        position_ids = np.concatenate([position_ids, np.arange(missing, dtype=position_ids.dtype)])
        boundaries = np.append(boundaries, boundaries[-1] + missing)
        prefixes = prefixes and Prefixes(boundaries, np.append(prefixes.shared, 0))
    return Row.of(input_ids, position_ids, boundaries, prefixes)


@dataclass(frozen=True)
class Slice:
    """This rank's part of a row and of its N targets.

    input_ids, position_ids int64 `[1, L / N]`. predictors (in the slice), labels int64 `[n]`: its targets; a
    rank without one has a stand-in, so that it takes part in the backward. own int64 `[n]`: which of the N
    they are, without the stand-in. places int64 `[N]`: where each target lies behind one another in all
    ranks' columns, `most` long each.
    """

    input_ids: np.ndarray
    position_ids: np.ndarray
    predictors: np.ndarray
    labels: np.ndarray
    own: np.ndarray
    places: np.ndarray
    most: int

    @classmethod
    def of(cls, row: Row, predictors: np.ndarray, labels: np.ndarray, group: RowGroup | None) -> "Slice":
        """predictors int64 `[N]` among the row's computed tokens, labels int64 `[N]`; all without a group."""
        if group is None:
            every = np.arange(len(labels))
            return cls(row.input_ids, row.position_ids, predictors, labels, every, every, len(labels))
        length = row.input_ids.shape[1] // group.count
        owner = predictors // length
        counts = np.bincount(owner, minlength=group.count)
        order = np.argsort(owner, kind="stable")
        starts = np.cumsum(counts) - counts
        most = max(1, int(counts.max()))
        places = np.empty(len(owner), np.int64)
        places[order] = owner[order] * most + np.arange(len(owner)) - starts[owner[order]]
        own = order[starts[group.index] : starts[group.index] + counts[group.index]]
        here = slice(group.index * length, (group.index + 1) * length)
        absent = np.zeros(1, np.int64)
        return cls(
            row.input_ids[:, here],
            row.position_ids[:, here],
            predictors[own] - here.start if len(own) else absent,
            labels[own] if len(own) else absent,
            own,
            places,
            most,
        )


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, places: torch.Tensor, own: torch.Tensor, most: int, group: RowGroup, *columns: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(own)
        ctx.size = len(columns[0])
        # Without an entropy bonus its gradient stays None, as in `logprobs.py`.
        ctx.set_materialize_grads(False)
        packed = columns[0].new_zeros(len(columns), most)
        packed[:, : ctx.size] = torch.stack(columns)
        of_ranks = gather_parts(packed, group)
        return of_ranks.transpose(0, 1).flatten(1).index_select(1, places).unbind()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        (own,) = ctx.saved_tensors
        # Every rank computes the same loss. Of its gradient a rank passes on what concerns its own scores;
        # the sum over ranks is then the gradient of one loss.
        found = []
        for gradient in gradients:
            if gradient is not None:
                column = gradient.new_zeros(ctx.size)
                column[: len(own)] = gradient.index_select(0, own)
                gradient = column
            found.append(gradient)
        return None, None, None, None, *found


def gathered(
    columns: Sequence[torch.Tensor], places: torch.Tensor, own: torch.Tensor, most: int, group: RowGroup
) -> tuple[torch.Tensor, ...]:
    """Collective: float32 columns `[n]` of a `Slice`'s targets to those of the row, `[N]`, with gradient."""
    found: tuple[torch.Tensor, ...] = _Gather.apply(places, own, most, group, *columns)
    return found
